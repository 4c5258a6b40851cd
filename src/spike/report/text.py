"""How is a value written, so that a tired person reads it right and a terminal or a page survives it?"""

from __future__ import annotations

import math
import unicodedata

from spike.domain.measured import NotMeasured

MAX_NAME_CHARS = 300
"""A name from a file longer than this is cut in the middle; tensor names of real models stay below 150."""


def visible(text: str) -> str:
    """The text on one line, with control, bidirectional and unpaired characters written as escapes.

    A tensor or file name may hold anything, and a terminal obeys what it is sent.
    """
    return "".join(c if _is_plain(c) else _escape(c) for c in text)


def visible_lines(text: str) -> str:
    """As `visible`, with line breaks kept."""
    return "\n".join(visible(line) for line in text.splitlines())


def _is_plain(char: str) -> bool:
    # Cc control, Cf format (bidirectional overrides, zero width), Cs surrogate, Co private, Zl/Zp line separators
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _escape(char: str) -> str:
    point = ord(char)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def name(text: str) -> str:
    """A name that came from a file: visible, and of bearable length."""
    shown = visible(text)
    if len(shown) <= MAX_NAME_CHARS:
        return shown
    half = MAX_NAME_CHARS // 2
    return f"{shown[:half]}…{shown[-half:]}"


def number(value: float | NotMeasured) -> str:
    """Four significant digits; whole numbers with thousands marks; words for what is not a number."""
    if isinstance(value, NotMeasured):
        return "not measured"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e6:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: "41 s", "3 min 20 s", "2 h 05 min", "3 d 4 h"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest:02d} s" if rest and minutes < 10 else f"{round(whole / 60)} min"
    if whole < 48 * 3600:
        hours, rest = divmod(round(whole / 60), 60)
        return f"{hours} h {rest:02d} min"
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d {hours} h"


def device_hours(value: float) -> str:
    """Hours of all devices together, with as many digits as small numbers need."""
    digits = 3 if value < 0.1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} GPU‑h"


def size(num_bytes: int) -> str:
    """Bytes in binary units."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{num_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def plural(count: int, noun: str) -> str:
    """ "1 step", "3 steps"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop, whatever it was written with."""
    shown = visible(text).strip()
    if not shown:
        return ""
    ended = shown if shown[-1] in ".!?…" else f"{shown}."
    # Names keep their case: "grad_norm leaves" starts with a lower-case identifier.
    first = shown.split()[0].rstrip(",:;.")
    return ended if any(c in first for c in "_./-") or not first.isalpha() else ended[0].upper() + ended[1:]


def when(time: str) -> str:
    """An ISO 8601 UTC time as a reader wants it: "2026-11-30 07:12:06"."""
    return visible(time).replace("T", " ").removesuffix("+00:00").removesuffix("Z")
