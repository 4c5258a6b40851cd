"""Which items of a set are enough to bring something back, and leave nothing when they are gone?

Group testing in the manner of delta debugging (Zeller and Hildebrandt 2002): a group that does not bring the
failure back on its own is discarded whole, one that does is split. Guarded against flaky and trivial answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Test = Callable[[tuple[int, ...]], bool | None]
"""Keep only these items: True where the failure is there, False where it is gone, None where it cannot be told."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The answer of a reduction."""

    items: tuple[int, ...]
    """Enough to bring the failure back; () where nothing could be said."""
    is_separated: bool
    """The failure is gone with everything else: these items are also needed."""
    num_tests: int
    reason: str


def reduce_items(items: Sequence[int], test: Test, *, guess: Sequence[int] = (), max_tests: int = 10) -> Reduction:
    """Find the items that bring the failure back.

    `items` is the whole set, known to fail. `guess` is tried first: items that look unlike the others. The answer
    is refused where it is flaky (a part fails and its parts and complement all do not add up) or trivial (every
    item, or more than half of them, which names nothing).
    """
    counter = _Counter(test, max_tests)
    whole = tuple(items)
    culprits = _from_guess(whole, tuple(guess), counter)
    if culprits is None:
        culprits = _split(whole, counter)
    if not culprits:
        return Reduction(
            (), False, counter.used, counter.reason or "no part of the batch brings the failure back alone"
        )
    rest = tuple(i for i in whole if i not in culprits)
    if not rest or len(culprits) * 2 > len(whole):
        return Reduction((), False, counter.used, "more than half of the batch is needed: it is the batch as a whole")
    without = counter(rest)
    if without is None:
        return Reduction(culprits, False, counter.used, "enough on their own; the rest was not tested")
    if without:
        return Reduction(culprits, False, counter.used, "enough on their own, and the rest still shows the failure")
    return Reduction(culprits, True, counter.used, "enough on their own, and without them the failure is gone")


class _Counter:
    """Counts and remembers tests, so that none is made twice and the budget holds."""

    def __init__(self, test: Test, max_tests: int) -> None:
        self._test, self._left = test, max_tests
        self._known: dict[tuple[int, ...], bool | None] = {}
        self.used = 0
        self.reason = ""

    def __call__(self, kept: tuple[int, ...]) -> bool | None:
        if kept in self._known:
            return self._known[kept]
        if self._left <= 0:
            self.reason = "the budget of trials for localising was spent"
            return None
        self._left -= 1
        self.used += 1
        self._known[kept] = self._test(kept)
        return self._known[kept]


def _from_guess(whole: tuple[int, ...], guess: tuple[int, ...], counter: _Counter) -> tuple[int, ...] | None:
    chosen = tuple(i for i in whole if i in guess)
    if not chosen or len(chosen) * 2 > len(whole):
        return None
    rest = tuple(i for i in whole if i not in chosen)
    return chosen if counter(chosen) and counter(rest) is False else None


EVENLY = 4
"""When all of this many parts fail, the cause is spread over them and splitting on only costs trials."""


def _split(whole: tuple[int, ...], counter: _Counter) -> tuple[int, ...]:
    """Halve failing groups, level by level, down to items, to groups that fail only together, or to an even spread."""
    groups = [whole]
    while any(len(group) > 1 for group in groups):
        parts = [part for group in groups for part in _halves(group)]
        failing = [part for part in parts if part in groups or counter(part)]
        if counter.reason:
            return ()
        if not failing or (len(parts) >= EVENLY and len(failing) == len(parts)):
            break
        groups = failing
    return tuple(item for group in groups for item in group)


def _halves(group: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = len(group) // 2
    return [group[:middle], group[middle:]] if middle else [group]
