"""What do these metric files say? Any mix of formats, ranks and restarts -> `Signals`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from spike.domain.errors import InputUnreadable
from spike.domain.signals import Damage, Signals
from spike.readers.metrics.chosen import counted_by
from spike.readers.metrics.contract import Parsed
from spike.readers.metrics.find import candidates, head_of, natural_key, recognise, survey, why_unreadable
from spike.readers.metrics.merge import ReadFile, merge
from spike.readers.metrics.plugins import metric_readers
from spike.readers.metrics.text_lines import first_line

_RANK_IN_NAME = re.compile(r"rank[_.\-]?(\d+)", re.IGNORECASE)
_RANK_OF_TORCHRUN = re.compile(r"attempt_\d+/(\d+)/std(?:out|err)\.log$")


def read_signals(paths: Sequence[Path], *, base: Path, columns: Mapping[str, str] | None = None) -> Signals:
    """Read metric files, or the ones found below directories, as one run.

    `base` shortens the names of sources; `columns` maps canonical names to columns that spike cannot guess.
    Raises InputUnreadable where none of them could be read, saying what was looked for.
    """
    chosen = dict(columns or {})
    files: list[ReadFile] = []
    expanded, refused = _expanded(paths, base)
    for path in expanded:
        source = relative(path, base)
        parsed = read_file(path, chosen)
        if isinstance(parsed, str):
            refused.append(Damage(source, 0, 0, parsed, False))
        else:
            files.append(ReadFile(source, parsed, rank_in_name(path)))
    if not any(file.parsed.columns for file in files):
        raise InputUnreadable(_nothing(paths, base, refused, files), hint=_hint(paths))
    signals = merge(files, chosen)
    if not refused:
        return signals
    return Signals(
        signals.series,
        signals.sources,
        signals.rewinds,
        (*refused, *signals.damages),
        signals.notes,
        signals.superseded,
    )


def read_file(path: Path, chosen: Mapping[str, str]) -> Parsed | str:
    """One file parsed, or the reason why not."""
    if reason := why_unreadable(path):
        return reason
    head = head_of(path)
    reader = recognise(path, chosen)
    if reader is None:
        return f"not a metric format that spike knows; its first line is: {first_line(head) or '(binary)'}"
    try:
        return counted_by(reader.read(path), chosen)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except MemoryError:
        return "reading it takes more memory than there is"
    except InputUnreadable as error:
        return f"{error.message}; {error.hint}"


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name or torchrun's log directory names, or None."""
    found = _RANK_IN_NAME.search(path.name) or _RANK_OF_TORCHRUN.search(path.as_posix())
    return int(found[1]) if found is not None else None


def relative(path: Path, base: Path) -> str:
    """The path as messages show it: relative to `base` where it lies below it."""
    absolute, root = path.absolute(), base.absolute()
    if absolute == root:
        return path.name
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else absolute.as_posix()


def _expanded(paths: Sequence[Path], base: Path) -> tuple[list[Path], list[Damage]]:
    """The files, and those below directories that could hold metrics and cannot be read."""
    found: dict[Path, None] = {}
    refused: list[Damage] = []
    for path in paths:
        if not path.is_dir():
            found[path] = None
            continue
        files, unreadable = survey(path)
        found.update(dict.fromkeys(files))
        refused += [Damage(relative(other, base), 0, 0, reason, False) for other, reason in unreadable]
    return sorted(found, key=natural_key), refused


def _hint(paths: Sequence[Path]) -> str:
    """Where a file has named numbers under names that nobody knows, the operator can say what they are."""
    heads = [head_of(path).lstrip() for path in paths if path.is_file()]
    if any(head.startswith(b"{") or b"," in head.split(b"\n", 1)[0] for head in heads):
        return "spike detect FILE --map loss=COLUMN --map step=COLUMN, or spike show formats"
    return "spike show formats"


def _nothing(paths: Sequence[Path], base: Path, refused: list[Damage], files: list[ReadFile]) -> str:
    formats = ", ".join(reader.format for reader in metric_readers())
    lines = [f"no metrics found in {', '.join(str(path) for path in paths) or 'nothing'}"]
    lines += [f"  {damage.source}: {damage.reason}" for damage in refused[:5]]
    for file in files[:5]:
        damages = file.parsed.damages
        reason = damages[0].reason if damages else "no rows in it"
        lines.append(f"  {file.source}: {file.parsed.format}, {reason}")
    for path in [path for path in paths if path.is_dir()][:3]:
        for other in islice(candidates(path), 3):
            shown = first_line(head_of(other)) or "(empty)"
            lines.append(f"  {relative(other, base)} starts with: {shown[:100]}")
    return "\n".join([*lines, f"  looked for: {formats}"])
