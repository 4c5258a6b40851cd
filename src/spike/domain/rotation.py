"""Which checkpoint will the run itself delete or write over next, and which would it load? By its stack's own rule.

Every stack that rotates does so by age or by a monitored value, never by health: a few poisoned saves push the last
good one out. A rule whose limit the stack stores nowhere is an assumption, and said to be one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Rotation:
    """What the next save of a run does to the checkpoints of one directory."""

    layout: str
    directory: str
    rule: str
    """The stack's rule in words, with the numbers that decide here."""
    paths: tuple[str, ...] = ()
    """What goes next, in this order; nothing where `unknown` is empty too."""
    is_overwritten: bool = False
    """True where the next save writes to the same path: a hard link does not keep the bytes."""
    assumes: str = ""
    """What has to be so for `paths` to be right, where no file says it."""
    unknown: str = ""
    """Why nothing can be said."""

    @property
    def fate(self) -> str:
        """What happens to `paths`."""
        return "overwritten" if self.is_overwritten else "deleted"


@dataclass(frozen=True, slots=True)
class Resume:
    """Which checkpoint of one directory the stack itself would load, against the newest whole one."""

    layout: str
    directory: str
    rule: str
    path: str
    """"" where the rule names none that is there."""
    newest_whole: str
    """"" where none is whole."""

    @property
    def differs(self) -> bool:
        """True where the stack would load another one than the newest whole one."""
        return self.path != self.newest_whole


def beyond(oldest_first: Sequence[str], keep: int, protected: Collection[str] = ()) -> tuple[str, ...]:
    """What is deleted so that `keep` stay, the oldest first; `protected` ones are passed over and count."""
    remaining, gone = len(oldest_first), []
    for path in oldest_first:
        if remaining <= max(keep, len(set(protected) & set(oldest_first))):
            break
        if path not in protected:
            gone.append(path)
            remaining -= 1
    return tuple(gone)


def inferred_keep(numbers: Sequence[int], first: int | None = None) -> int | None:
    """How many generations a run keeps, as its gaps tell: the older ones are gone and the rest is evenly spaced.

    `first` is the number of the first save where the stack fixes it, else one interval. None where nothing is missing
    at the start or the rest is not regular.
    """
    ordered = sorted(numbers)
    if first is not None:
        regular = ordered == list(range(ordered[0], ordered[0] + len(ordered))) if ordered else False
        return len(ordered) if regular and ordered[0] > first else None
    if len(ordered) < 3:
        return None  # two have an interval, and nothing to confirm it
    interval = ordered[1] - ordered[0]
    regular = all(b - a == interval for a, b in pairwise(ordered))
    return len(ordered) if regular and ordered[0] > interval and ordered[0] % interval == 0 else None
