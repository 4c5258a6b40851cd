"""In what did two trials really differ? The observed factor vector, and its comparison.

A trial declares one change; this module reads from the traces what differed. Only inputs of a step count as
factors (batch, generator state, learning rate, ...): losses and gradients are results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spike.domain.measured import NotMeasured
from spike.domain.trace import Fingerprint, RankTrace, StepRecord
from spike.domain.trial import Factor, FactorDifference, TrialRun, TrialSpec

Place = tuple[str, str]
"""(where, which): ("step 221 rank 0", "torch"), ("rank 0", "OMP_NUM_THREADS"); which may be ""."""
Vector = dict[Factor, dict[Place, str]]
Uncontrolled = frozenset[tuple[Factor, str]]
"""(factor, which) that differ between unchanged trials: the run itself does not hold them still."""

ACCOMPANIES: dict[Factor, frozenset[Factor]] = {
    # A checkpoint brings its moments and generator states along; a code state brings whatever it does differently.
    Factor.CHECKPOINT: frozenset({Factor.OPTIMIZER_STATE, Factor.RNG}),
    Factor.CODE: frozenset(set(Factor) - {Factor.WORLD, Factor.DEVICE, Factor.CHECKPOINT}),
    Factor.RNG: frozenset({Factor.DATA_ORDER, Factor.BATCH}),
}
"""Factors that may differ as a consequence of the declared one, and are reported with it."""

KERNEL_VARIABLES = ("CUBLAS_", "CUDNN_", "NVIDIA_TF32", "TORCH_COMPILE", "TORCHDYNAMO", "TORCHINDUCTOR", "NVTE_")
"""Environment variables that choose kernels count as kernels, not as environment."""


def observe(run: TrialRun) -> Vector:
    """What this trial's processes used, by factor and place."""
    vector: Vector = {factor: {} for factor in Factor}
    vector[Factor.CODE]["start", ""] = run.spec.commit or "recorded"
    for trace in run.traces:
        _observe_process(trace, vector, run.spec)
        for step in trace.steps:
            _observe_step(step, trace.process.rank, vector)
        for effect in trace.effects:
            if effect.took_effect and effect.what.startswith("params-delta"):
                vector[Factor.BATCH][f"step {effect.step} rank {trace.process.rank}", ""] = "update withheld"
    return vector


def _observe_process(trace: RankTrace, vector: Vector, spec: TrialSpec) -> None:
    process, where = trace.process, f"rank {trace.process.rank}"
    vector[Factor.CONFIG][where, ""] = " ".join(_neutral(argument, spec) for argument in process.argv)
    vector[Factor.WORLD][where, ""] = str(process.world)
    vector[Factor.DEVICE][where, ""] = process.device
    for number, optimizer in enumerate(process.optimizers):
        vector[Factor.KERNELS][where, f"optimizer {number}"] = optimizer
    for name, value in process.kernels:
        vector[Factor.KERNELS][where, name] = value
    for name, value in (("python", process.python), ("threads", str(process.threads)), *process.packages):
        vector[Factor.ENVIRONMENT][where, name] = value
    for name, value in process.env:
        factor = Factor.KERNELS if name.startswith(KERNEL_VARIABLES) else Factor.ENVIRONMENT
        vector[factor][where, name] = value
    loaded = next((f for f in trace.fingerprints if f.step == trace.first_step), None)
    if loaded is not None:
        vector[Factor.CHECKPOINT][where, ""] = f"step {trace.first_step}: {_digests(loaded, 'parameter')}"
        vector[Factor.OPTIMIZER_STATE][where, ""] = _digests(loaded, "moment")


def _neutral(argument: str, spec: TrialSpec) -> str:
    """An argument without the checkpoint's path, which is a factor of its own."""
    return argument.replace(spec.checkpoint, "{checkpoint}") if spec.checkpoint else argument


def _digests(fingerprint: Fingerprint, role: str) -> str:
    return " ".join(t.digest[:16] for t in fingerprint.tensors if t.role == role)


def _observe_step(step: StepRecord, rank: int, vector: Vector) -> None:
    where = f"step {step.step} rank {rank}"
    vector[Factor.BATCH][where, ""] = " ".join(micro.batch[:16] for micro in step.micro_batches)
    for name, digest in step.rng:
        vector[Factor.RNG][where, name] = digest[:16]
    vector[Factor.LEARNING_RATE][where, ""] = " ".join(f"{lr:.9g}" for lr in step.lr)
    vector[Factor.CLIPPING][where, ""] = "none" if step.clip_max_norm is None else f"{step.clip_max_norm:.9g}"
    vector[Factor.PRECISION][where, ""] = step.precision


def uncontrolled(baseline: Vector, repeats: Iterable[Vector]) -> Uncontrolled:
    """What unchanged trials already differ in by name: a generator that the run never seeds, a random port.

    Only named parts count (one generator, one variable): a batch or a learning rate that differs between unchanged
    trials has no name of its own and stays a difference, since nothing could be concluded from such a run.
    """
    found = set()
    for repeat in repeats:
        for factor in Factor:
            left, right = baseline[factor], repeat[factor]
            found |= {(factor, place[1]) for place in left if place[1] and left[place] != right.get(place, left[place])}
    return frozenset(found)


def differences(baseline: Vector, trial: Vector, ignoring: Uncontrolled = frozenset()) -> tuple[FactorDifference, ...]:
    """The first place in which each factor differs, over the places that both trials reached.

    A named part that only one of them has (a variable that was set) is a difference, too.
    """
    found = []
    for factor in Factor:
        left, right = baseline[factor], trial[factor]
        differing = [place for place in _comparable(left, right) if (factor, place[1]) not in ignoring]
        if not differing:
            continue
        place = differing[0]
        reordered = factor is Factor.BATCH and _same_batches_other_order(left, right)
        where = " ".join(part for part in place if part)
        named = Factor.DATA_ORDER if reordered else factor
        found.append(FactorDifference(named, where, left.get(place, "not set"), right.get(place, "not set")))
    return tuple(found)


def _comparable(left: Mapping[Place, str], right: Mapping[Place, str]) -> list[Place]:
    """Places that differ: in both with another value, or a named part of a place that only one of them has."""
    reached = {where for where, _ in left} & {where for where, _ in right}
    places = [place for place in left if place in right or (place[1] and place[0] in reached)]
    places += [place for place in right if place not in left and place[1] and place[0] in reached]
    return [place for place in places if left.get(place) != right.get(place)]


def _same_batches_other_order(left: Mapping[Place, str], right: Mapping[Place, str]) -> bool:
    shared = [place for place in left if place in right]
    return len(shared) > 1 and Counter(left[p] for p in shared) == Counter(right[p] for p in shared)


def undeclared(
    declared: Factor | None, observed: Iterable[FactorDifference], *, by_knob: bool = False
) -> tuple[FactorDifference, ...]:
    """The observed differences that the declared change does not explain.

    `by_knob`: the change was made by extra arguments of the command itself, so its configuration differs too.
    """
    if declared is None:
        return tuple(observed)
    allowed = {declared} | ACCOMPANIES.get(declared, frozenset())
    if by_knob:
        allowed.add(Factor.CONFIG)
    return tuple(d for d in observed if d.factor not in allowed)


def identical_results(left: TrialRun, right: TrialRun) -> bool:
    """True where two trials computed the same losses and gradient norms at every step both reached."""
    return all(_identical_steps(a, b) for a, b in zip(left.traces, right.traces, strict=False))


def _identical_steps(left: RankTrace, right: RankTrace) -> bool:
    other = {step.step: step for step in right.steps}
    return all(
        same_number(step.loss, other[step.step].loss) and same_number(step.grad_norm, other[step.step].grad_norm)
        for step in left.steps
        if step.step in other
    )


def same_number(left: float | NotMeasured, right: float | NotMeasured) -> bool:
    """Equality in which NaN equals NaN and an unmeasured value equals nothing."""
    if isinstance(left, NotMeasured) or isinstance(right, NotMeasured):
        return False
    return left == right or (left != left and right != right)
