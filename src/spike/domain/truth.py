"""Does a verdict tell the truth? What was planted in a fixture, what was found, and where the two differ."""

from __future__ import annotations

from dataclasses import dataclass, field

from spike.domain.verdict import CauseClass, Place, Status

RANKING = (Status.UNDETERMINED, Status.SUPPORTED, Status.ESTABLISHED)
SAMPLES_NAMED = 0.5
"""Share of the planted samples that a verdict has to name; naming an innocent one is wrong at any share."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What was planted, as `truth.yaml` (spike.truth/1) says."""

    name: str
    why: str
    is_clean: bool = False
    """Nothing was planted: no incident may be found."""
    status: Status = Status.UNDETERMINED
    """The weakest status that is right."""
    at_most: Status = Status.ESTABLISHED
    """The strongest status that the run can bear; `undetermined` means that any claim would be a guess."""
    cause_class: CauseClass = CauseClass.NONE
    cause: str = ""
    onset: int | None = None
    """Logged step at which the anomaly starts."""
    step: int | None = None
    """Where the cause first acts."""
    tolerance: int = 0
    """Steps by which onset and step may be off."""
    where: Place = field(default_factory=Place)
    """Only the fields that are set are held against the verdict. `commit` is the beginning of a subject line."""
    needs: tuple[str, ...] = ()
    """Packages without which the run cannot be built."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an investigation said that knew nothing of the truth."""

    onsets: tuple[int, ...]
    """Onset of every incident that was detected."""
    status: Status | None = None
    """None where the investigation ended before a verdict."""
    cause_class: CauseClass = CauseClass.NONE
    cause: str = ""
    step: int | None = None
    where: Place = field(default_factory=Place)
    """`commit` is the subject line of the commit that the verdict names."""
    num_trials: int = 0


def mismatches(truth: Truth, found: Found) -> tuple[str, ...]:
    """Every respect in which the investigation is wrong, as sentences; empty where it told the truth."""
    if truth.is_clean:
        if not found.onsets:
            return ()
        steps = ", ".join(str(s) for s in found.onsets)
        return (f"a healthy run has incidents at steps {steps}",)
    wrong = list(_detection(truth, found))
    if found.status is None:
        return (*wrong, "there is no verdict")
    if RANKING.index(found.status) > RANKING.index(truth.at_most):
        wrong.append(f"it claims {found.cause} ({found.status}), and this run can show no more than {truth.at_most}")
    if truth.status is found.status is Status.UNDETERMINED or truth.at_most is Status.UNDETERMINED:
        return tuple(wrong)
    return (*wrong, *_verdict(truth, found), *_place(truth.where, found.where))


def _detection(truth: Truth, found: Found) -> tuple[str, ...]:
    if not found.onsets:
        return ("no incident was detected",)
    if truth.onset is not None and not any(_near(truth.onset, o, truth.tolerance) for o in found.onsets):
        return (f"the onset is {_around(truth.onset, truth.tolerance)}, detected at {found.onsets[0]}",)
    return ()


def _verdict(truth: Truth, found: Found) -> tuple[str, ...]:
    wrong = []
    assert found.status is not None
    if RANKING.index(found.status) < RANKING.index(truth.status):
        wrong.append(f"the status is {found.status}, and {truth.status} can be had")
    if found.cause_class is not truth.cause_class:
        wrong.append(f"the class is {truth.cause_class}, not {found.cause_class}")
    if found.cause != truth.cause:
        wrong.append(f"the cause is {truth.cause}, not {found.cause or 'named'}")
    if truth.step is not None and (found.step is None or not _near(truth.step, found.step, truth.tolerance)):
        wrong.append(f"the step is {_around(truth.step, truth.tolerance)}, not {found.step}")
    return tuple(wrong)


def _place(truth: Place, found: Place) -> tuple[str, ...]:
    wrong = [*_samples(truth.samples, found.samples)]
    if truth.rank is not None and found.rank != truth.rank:
        wrong.append(f"the rank is {truth.rank}, not {found.rank}")
    inside = found.module == truth.module or found.module.startswith(truth.module + ".")
    if truth.module and not inside:
        wrong.append(f"the module is in {truth.module}, not {found.module or 'named'}")
    if truth.tensor and found.tensor != truth.tensor:
        wrong.append(f"the tensor is {truth.tensor}, not {found.tensor or 'named'}")
    if truth.commit and not found.commit.startswith(truth.commit):
        wrong.append(f"the commit is {truth.commit!r}, not {found.commit or 'named'!r}")
    if truth.file and found.file.rpartition("/")[2] != truth.file.rpartition("/")[2]:
        wrong.append(f"the file is {truth.file}, not {found.file or 'named'}")
    if truth.key and found.key.rpartition(".")[2] != truth.key:
        wrong.append(f"the key is {truth.key}, not {found.key or 'named'}")
    return tuple(wrong)


def _samples(truth: tuple[int, ...], found: tuple[int, ...]) -> tuple[str, ...]:
    if not truth:
        return ()
    innocent = sorted(set(found) - set(truth))
    if innocent:
        return (f"samples {innocent} are innocent",)
    if len(set(found)) < SAMPLES_NAMED * len(truth):
        return (f"{len(set(found))} of the {len(truth)} planted samples are named",)
    return ()


def _near(expected: int, found: int, tolerance: int) -> bool:
    return abs(expected - found) <= tolerance


def _around(step: int, tolerance: int) -> str:
    return f"{step} (+-{tolerance})" if tolerance else str(step)
