"""Which number does this text mean? The spellings that training logs use, NaN and infinities included."""

from __future__ import annotations

import re

NUMBER = r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)"
"""A number as a console prints it; used with re.IGNORECASE."""

HIGHEST_STEP = 2**53
"""Beyond this a double, and so many a JSON library, cannot tell one step from the next."""

_EXACT = re.compile(rf"(?P<number>{NUMBER})\s*(?P<unit>%|ms|s|us|GiB|GB|MB|MiB|B|T|K|M)?", re.IGNORECASE)
_SUFFIX = {"t": 1e12, "b": 1e9, "m": 1e6, "k": 1e3}


def parse_number(text: str) -> float | None:
    """The number that `text` prints, or None where it prints something else.

    Accepts thousands commas, "nan", "inf", "-Infinity", a trailing unit (dropped) and the suffixes K, M, B, T
    (multiplied, as OLMo-core prints token counts). "N/A", "" and dates are no numbers.
    """
    text = text.strip().strip("\"'")
    try:
        return float(text)
    except ValueError:
        pass
    match = _EXACT.fullmatch(text)
    if match is None:
        return None
    try:
        value = float(match["number"].replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return value * _SUFFIX.get((match["unit"] or "").lower(), 1.0)


def as_number(value: object) -> float | None:
    """A parsed JSON value as a number: numbers, booleans and numeric strings; None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, str) and len(value) <= 40:
        return parse_number(value)
    return None


def as_step(value: object) -> int | None:
    """A parsed value as a step number, or None where it is none (negative, fractional, not finite)."""
    if type(value) is int and 0 <= value <= HIGHEST_STEP:
        return value
    number = as_number(value)
    if number is None or number != number or number < 0 or number > HIGHEST_STEP or number != int(number):
        return None
    return int(number)
