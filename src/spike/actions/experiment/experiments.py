"""How is an experiment with this name set up here? From a name to a trial, or to the reason why it cannot be run.

An experiment is an intervention aimed at the suspect steps, `<name>-placebo` (the same change where nothing is
wrong) or one of the cells with a healthy state. An intervention whose parameters are known below needs no line
here: its file is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spike.actions.experiment.bench import HEALTHY_LEAD, Bench, Unavailable, open_healthy
from spike.actions.experiment.code_history import earlier_commit
from spike.actions.experiment.flipped import find_flip
from spike.actions.experiment.trials import judge, perform
from spike.domain.schedule import Departure
from spike.domain.trace import CapturedBatch
from spike.domain.trial import Factor, Intervention, Parameter, TrialResult, TrialSpec
from spike.lab.catalogue import InterventionInfo, interventions
from spike.readers.checkpoints import inspect_checkpoint, write_donor

PLACEBO = "-placebo"
STEPWISE = frozenset({Factor.BATCH, Factor.LEARNING_RATE, Factor.CLIPPING})
"""Factors of single steps; a change of any other holds for the whole window."""
MIN_DONOR_STEPS = 2
"""With a single healthy batch, a placebo at its own step would put it into its own place."""
BACK = 0.01
"""A logged rate this near to the schedule's is on it."""
FRESH_SEED = 20_011
"""Any seed but the run's own."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A trial and how its outcome is to be read."""

    spec: TrialSpec
    shift: int = 0
    in_healthy_state: bool = False


def names() -> tuple[str, ...]:
    """Every experiment there is, for the lint of playbooks and for `spike branch --help`."""
    known = interventions()
    stepwise = [name for name, info in known.items() if Factor(info.factor) in STEPWISE and name != "transplant"]
    return (*known, *(name + PLACEBO for name in stepwise))


def prepare(bench: Bench, experiment: str, *, until: int = 0) -> Prepared:
    """The trial for this experiment. Raises `Unavailable` with the reason.

    `until`: a rate or a threshold is held through this step, where that lies beyond the judged ones.
    """
    name = experiment.removesuffix(PLACEBO)
    info = interventions().get(name)
    if info is None:
        raise Unavailable(f"there is no intervention {name!r}")
    match name:
        case "earlier-checkpoint":
            return _earlier_checkpoint(bench)
        case "other-commit":
            spec = _branch(bench, info, steps=(), parameters=(), commit=earlier_commit(bench.investigation))
            # Its batches are compared with the recorded code's, to tell other data from another objective.
            return Prepared(replace(spec, capture_steps=bench.baseline.performed.run.spec.capture_steps))
        case "transplant":
            return _transplant(bench, info)
    steps = _steps(bench, info, placebo=experiment.endswith(PLACEBO), until=until)
    parameters = tuple((p, _resolve(bench, info, p, steps, experiment)) for p in info.parameters)
    spec = _branch(bench, info, steps=steps, parameters=parameters)
    if experiment.endswith(PLACEBO):
        spec = replace(
            spec, id=experiment, role="placebo", purpose=f"placebo: {info.summary.rstrip('.')}, at healthy steps only"
        )
    return Prepared(spec)


def _branch(
    bench: Bench,
    info: InterventionInfo,
    *,
    steps: tuple[int, ...],
    parameters: tuple[tuple[str, Parameter], ...],
    commit: str = "",
) -> TrialSpec:
    base = bench.baseline.performed.run.spec
    where = f" at steps {steps[0]}-{steps[-1]}" if len(steps) > 1 else f" at step {steps[0]}" if steps else ""
    return TrialSpec(
        id=info.name,
        purpose=f"{info.summary.rstrip('.')}{where}",
        checkpoint=base.checkpoint,
        first_step=base.first_step,
        stop_after=base.stop_after,
        intervention=Intervention(info.name, Factor(info.factor), steps, parameters),
        commit=commit,
        fingerprint_steps=(base.first_step,),
    )


def _steps(bench: Bench, info: InterventionInfo, *, placebo: bool, until: int = 0) -> tuple[int, ...]:
    factor = Factor(info.factor)
    last = max(bench.last, until)
    if info.name == "set-element":
        return (bench.onset,)
    if factor not in STEPWISE:
        return ()
    if placebo:
        healthy = bench.healthy_steps()
        if not healthy:
            raise Unavailable("no healthy step lies between the checkpoint and the onset")
        return healthy[-max(len(bench.suspect_steps()), 1) :]
    if factor is Factor.LEARNING_RATE:
        return _departed(bench, _departure(bench).step, last)
    if factor is Factor.CLIPPING:
        return tuple(range(bench.suspect_steps()[0], last + 1))
    return bench.suspect_steps()


def _departed(bench: Bench, first: int, last: int) -> tuple[int, ...]:
    """Steps up to the last judged one, and those beyond it at which the rate is not known to be back on schedule."""
    from spike.actions.experiment.observations import expected_lr, known_lr

    beyond = range(bench.last + 1, last + 1)
    return (
        *range(first, bench.last + 1),
        *(s for s in beyond if (rate := known_lr(bench, s)) is None or abs(rate - expected_lr(bench, s)) > BACK * rate),
    )


def _departure(bench: Bench) -> Departure:
    from spike.actions.experiment.observations import lr_departure

    found = lr_departure(bench)
    if found is None:
        raise Unavailable("the learning rate is on its schedule")
    return found


def _resolve(
    bench: Bench, info: InterventionInfo, parameter: str, steps: tuple[int, ...], experiment: str
) -> Parameter:
    resolver = _RESOLVERS.get(parameter)
    if resolver is None:
        raise Unavailable(
            f"its parameter {parameter!r} has to be given: spike branch {info.name} --set {parameter}=..."
        )
    return resolver(bench, info, steps, experiment)


def _donors(bench: Bench, _info: InterventionInfo, steps: tuple[int, ...], _experiment: str) -> Parameter:
    if len({b.step for b in bench.donors()}) < MIN_DONOR_STEPS:
        open_healthy(bench)
    donors = bench.donors()
    if not donors:
        raise Unavailable("no batch from before the suspect steps could be captured as a control")
    return pair_batches(steps, bench.baseline.performed.run.batches, donors)


def pair_batches(
    steps: tuple[int, ...], shape_of: tuple[CapturedBatch, ...], donors: tuple[CapturedBatch, ...]
) -> tuple[str, ...]:
    """One donor file for every micro-batch of every step: "step:micro:rank:path", donors taken in turn.

    `shape_of` tells how many micro-batches a step of each rank has.
    """
    places = sorted({(b.rank, b.micro) for b in (shape_of or donors)})
    by_place: dict[tuple[int, int], list[CapturedBatch]] = {}
    for donor in donors:
        by_place.setdefault((donor.rank, donor.micro), []).append(donor)
    rows = []
    for number, step in enumerate(steps):
        for rank, micro in places:
            pool = by_place.get((rank, micro))
            if not pool:
                raise Unavailable(f"no control batch was captured for micro-batch {micro} of rank {rank}")
            # Never the step's own batch: a placebo that puts a batch in its own place changes nothing.
            others = [b for b in pool if b.step != step]
            if not others:
                raise Unavailable(f"the only control batch there is is that of step {step} itself")
            rows.append(f"{step}:{micro}:{rank}:{others[number % len(others)].path}")
    return tuple(rows)


def _lr(bench: Bench, _info: InterventionInfo, steps: tuple[int, ...], experiment: str) -> Parameter:
    from spike.actions.experiment.observations import expected_lr, used_lr

    departure = _departure(bench)
    if experiment.endswith(PLACEBO):
        # The same relative change where the schedule was followed.
        return tuple(f"{s}:{used_lr(bench, s) / departure.ratio:.12g}" for s in steps)
    return tuple(f"{s}:{expected_lr(bench, s):.12g}" for s in steps)


def _scale(_bench: Bench, _info: InterventionInfo, _steps: tuple[int, ...], _experiment: str) -> Parameter:
    return 0.5


def _max_norm(bench: Bench, _info: InterventionInfo, _steps: tuple[int, ...], _experiment: str) -> Parameter:
    from spike.actions.experiment.observations import former_max_norm, usual_grad_norm

    return former_max_norm(bench) or usual_grad_norm(bench)


def _donor(bench: Bench, info: InterventionInfo, _steps: tuple[int, ...], _experiment: str) -> Parameter:
    """State taken from a checkpoint: the last good one's own for a forced load, an earlier one's for a donor."""
    start = bench.investigation.last_good if info.name == "intact-load" else bench.earlier()
    if start is None:
        raise Unavailable("there is no earlier checkpoint to take state from")
    path = bench.investigation.case.path / "donors" / f"{info.name}-step-{start.step}.pt"
    if not path.is_file():
        checkpoint = inspect_checkpoint(bench.investigation.pinned_path(start))
        if info.name == "donor-moments" and "optimizer" in checkpoint.missing:
            raise Unavailable(f"the checkpoint of step {start.step} holds no optimizer state")
        path.parent.mkdir(exist_ok=True)
        write_donor(checkpoint, path, parameters=info.name != "donor-moments", moments=info.name != "donor-parameters")
    return str(path)


def _seed(_bench: Bench, _info: InterventionInfo, _steps: tuple[int, ...], _experiment: str) -> Parameter:
    return FRESH_SEED


def _element(bench: Bench, _info: InterventionInfo, _steps: tuple[int, ...], _experiment: str) -> Parameter:
    """The flipped element that the first checkpoint after the onset shows, with the bits that explain it."""
    flip = find_flip(bench)
    if flip is None:
        raise Unavailable("no checkpoint after the onset shows a single flipped element")
    return f"{flip.name}:{flip.index}:{flip.mask:x}"


Resolver = Callable[[Bench, InterventionInfo, tuple[int, ...], str], Parameter]
_RESOLVERS: dict[str, Resolver] = {
    "donors": _donors,
    "lr": _lr,
    "scale": _scale,
    "max_norm": _max_norm,
    "donor": _donor,
    "seed": _seed,
    "element": _element,
}


def _earlier_checkpoint(bench: Bench) -> Prepared:
    start = bench.earlier()
    if start is None:
        raise Unavailable("the case pins no checkpoint older than the last good one")
    base = bench.baseline.performed.run.spec
    info = interventions()["earlier-checkpoint"]
    spec = TrialSpec(
        id=info.name,
        purpose=f"{info.summary.rstrip('.')}: from step {start.step} through step {base.stop_after}",
        checkpoint=start.original,
        first_step=start.step,
        stop_after=base.stop_after,
        intervention=Intervention(info.name, Factor(info.factor), (), (("step", start.step),)),
        fingerprint_steps=(start.step, base.first_step),
    )
    return Prepared(spec)


def _transplant(bench: Bench, info: InterventionInfo) -> Prepared:
    """The suspect batch into a healthy state: an earlier checkpoint's, else early in the replayed window."""
    suspect = bench.suspect_step if bench.suspect_step is not None else bench.onset
    batches = [b for b in bench.baseline.performed.run.batches if b.step == suspect]
    if not batches:
        raise Unavailable(f"the batch of step {suspect} was not captured")
    healthy = open_healthy(bench)
    base = (healthy or bench.baseline).performed.run.spec
    target = base.first_step + HEALTHY_LEAD + 1
    span = bench.last - bench.onset
    stop = min(target + span, base.stop_after if healthy else bench.onset - 2)
    if stop < target:
        raise Unavailable("no healthy state is at hand: no earlier checkpoint, and no healthy step before the onset")
    donors = tuple(f"{target}:{b.micro}:{b.rank}:{b.path}" for b in sorted(batches, key=lambda b: (b.rank, b.micro)))
    spec = TrialSpec(
        id=info.name,
        purpose=f"the batch of step {suspect} at step {target}, in a healthy state",
        checkpoint=base.checkpoint,
        first_step=base.first_step,
        stop_after=stop,
        intervention=Intervention(info.name, Factor(info.factor), (target,), (("donors", donors),)),
        fingerprint_steps=(base.first_step,),
        role="reversal",
    )
    return Prepared(spec, shift=target - suspect, in_healthy_state=healthy is not None)


def run_experiment(bench: Bench, experiment: str, prepared: Prepared) -> TrialResult:
    """Perform and judge one prepared experiment, in the suspect or in the healthy state."""
    if not (prepared.in_healthy_state or prepared.shift):
        return bench.run(experiment, prepared.spec)
    baseline = bench.healthy if prepared.in_healthy_state else bench.baseline
    reference = {s.name: s for s in baseline.performed.signals.series} if baseline is not None else None
    performed = perform(bench.investigation, prepared.spec)
    result = judge(bench.investigation, performed, baseline, shift=prepared.shift, reference=reference)
    bench.results[experiment] = result
    bench.performed[experiment] = performed
    return result


def cost(bench: Bench, experiment: str) -> float:
    """Relative cost: replayed steps, plus a start that is worth some dozens of them on a small model."""
    start = 40.0
    base = bench.baseline.performed.run.spec
    window = base.stop_after - base.first_step
    earlier = bench.earlier()
    if experiment == "earlier-checkpoint" and earlier is not None:
        window = base.stop_after - earlier.step
    return (start + window) / start
