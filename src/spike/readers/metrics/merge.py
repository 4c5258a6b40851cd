"""How do many files become one set of signals? Same stack's files are chained, between stacks the best record wins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spike.domain.signals import HELD_OUT_LOSS, LOSS, Rewind, Series, Signals, Source
from spike.readers.metrics.columns import assign, is_held_out
from spike.readers.metrics.contract import Column, Parsed
from spike.readers.metrics.timeline import Timeline, settle

GOOD_COVERAGE = 0.9
"""A source with this share of the longest one's rows competes by digits; a sparser one loses."""

FROM_SCRATCH_SHARE = 0.5
"""After a rewind the loss counts as back at its start where it lies nearer to the start than this share of the way."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadFile:
    """One parsed file, with what its name says."""

    source: str
    parsed: Parsed
    rank: int | None


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    file: ReadFile
    column: Column


def merge(files: Sequence[ReadFile], chosen: Mapping[str, str]) -> Signals:
    """All files of one run as signals; `chosen` maps canonical names to columns."""
    grouped: dict[tuple[str, int | None], dict[str, list[_Piece]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for name, piece in _named(file, chosen):
            rank = piece.column.rank if piece.column.rank is not None else file.rank
            grouped[name, rank][file.parsed.format].append(piece)
    series: list[Series] = []
    superseded: list[Series] = []
    rewinds: dict[str, list[Rewind]] = defaultdict(list)
    for (name, rank), by_format in grouped.items():
        one, line, origin = _chain(name, rank, _best(list(by_format.values())))
        series.append(one)
        for old in line.superseded:
            superseded.append(replace(one, steps=old.steps, values=old.values))
        rewinds[name].extend(_rewinds(line, one, origin))
    return Signals(
        series=tuple(series),
        sources=tuple(_source(file) for file in files),
        rewinds=_chosen_rewinds(rewinds),
        damages=tuple(replace(d, source=file.source) for file in files for d in file.parsed.damages),
        notes=tuple(dict.fromkeys(note for file in files for note in file.parsed.notes)),
        superseded=tuple(superseded),
    )


def _named(file: ReadFile, chosen: Mapping[str, str]) -> list[tuple[str, _Piece]]:
    train = [c for c in file.parsed.columns if not c.held_out]
    held_out = [c for c in file.parsed.columns if c.held_out]
    names = assign(dict.fromkeys(column.name for column in train), chosen)
    found = [(names[column.name], _Piece(file, column)) for column in train]
    if held_out:
        names = assign(dict.fromkeys(column.name for column in held_out), {})
        taken = {name for name, _ in found}
        for column in held_out:
            name = names[column.name]
            if name == LOSS:
                name = HELD_OUT_LOSS if HELD_OUT_LOSS not in taken else f"eval/{column.name}"
            elif name != HELD_OUT_LOSS and not is_held_out(name):
                name = f"eval/{column.name}"
            found.append((name, _Piece(file, column)))
    return found


def _best(candidates: list[list[_Piece]]) -> list[_Piece]:
    """The pieces of one format: the most digits among those that cover the record."""
    most = max(_num_rows(pieces) for pieces in candidates)
    good = [pieces for pieces in candidates if _num_rows(pieces) >= GOOD_COVERAGE * most]
    return max(good, key=lambda pieces: (max(p.column.digits for p in pieces), _num_rows(pieces)))


def _num_rows(pieces: list[_Piece]) -> int:
    return sum(piece.column.steps.size for piece in pieces)


def _chain(name: str, rank: int | None, pieces: list[_Piece]) -> tuple[Series, Timeline, list[tuple[int, str]]]:
    """One series out of consecutive files; `origin` lists (first row, source) to locate rewinds."""
    if len(pieces) == 1:
        steps, values = pieces[0].column.steps, pieces[0].column.values  # not copied: a big file is a view
    else:
        steps = np.concatenate([p.column.steps for p in pieces])
        values = np.concatenate([p.column.values for p in pieces])
    starts = np.cumsum([0, *(p.column.steps.size for p in pieces[:-1])]).tolist()
    origin = [(int(start), p.file.source) for start, p in zip(starts, pieces, strict=True)]
    line = settle(steps, values)
    last = pieces[-1]
    one = Series(
        name,
        line.steps,
        line.values,
        rank,
        last.file.source,
        last.column.name,
        max(p.column.digits for p in pieces),
    )
    return one, line, origin


def _rewinds(line: Timeline, one: Series, origin: list[tuple[int, str]]) -> list[Rewind]:
    found: list[Rewind] = []
    for index, (start, end, row) in enumerate(line.rewinds):
        source = next(name for first, name in reversed(origin) if first <= row)
        scratch = one.name == LOSS and _is_from_scratch(line, index, end)
        found.append(Rewind(start, end, source, scratch))
    return found


def _is_from_scratch(line: Timeline, index: int, to_step: int) -> bool:
    """Whether the loss behind the rewind starts again where the record started."""
    old = line.superseded[index].values
    new = line.values[np.searchsorted(line.steps, to_step) :]
    old, new = old[np.isfinite(old)], new[np.isfinite(new)]
    if old.size < 4 or new.size == 0 or (line.steps.size and int(line.steps[0]) < to_step):
        return False
    start, end = float(old[0]), float(np.median(old[-max(1, old.size // 4) :]))
    return abs(float(new[0]) - start) < FROM_SCRATCH_SHARE * abs(start - end)


def _chosen_rewinds(by_name: dict[str, list[Rewind]]) -> tuple[Rewind, ...]:
    """The loss tells rewinds best; without one the signal that saw most of them."""
    if by_name.get(LOSS):
        return tuple(dict.fromkeys(by_name[LOSS]))
    longest: list[Rewind] = []
    for found in by_name.values():
        longest = max(longest, found, key=len)
    return tuple(dict.fromkeys(longest))


def _source(file: ReadFile) -> Source:
    steps = [c.steps for c in file.parsed.columns if c.steps.size]
    first = min((int(s.min()) for s in steps), default=None)
    last = max((int(s.max()) for s in steps), default=None)
    return Source(file.source, file.parsed.format, file.parsed.num_rows, first, last)
