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

Vector = dict[Factor, dict[str, str]]

ACCOMPANIES: dict[Factor, frozenset[Factor]] = {
    # A checkpoint brings its moments along; a code state brings whatever it does differently.
    Factor.CHECKPOINT: frozenset({Factor.OPTIMIZER_STATE}),
    Factor.CODE: frozenset(set(Factor) - {Factor.WORLD, Factor.DEVICE, Factor.CHECKPOINT}),
    Factor.RNG: frozenset({Factor.DATA_ORDER, Factor.BATCH}),
}
"""Factors that may differ as a consequence of the declared one, and are reported with it."""


def observe(run: TrialRun) -> Vector:
    """What this trial's processes used, by factor and place ("step 221 rank 0")."""
    vector: Vector = {factor: {} for factor in Factor}
    vector[Factor.CODE]["start"] = run.spec.commit or "recorded"
    for trace in run.traces:
        _observe_process(trace, vector, run.spec)
        for step in trace.steps:
            _observe_step(step, trace.process.rank, vector)
        for effect in trace.effects:
            if effect.took_effect and effect.what.startswith("params-delta"):
                vector[Factor.BATCH][f"step {effect.step} rank {trace.process.rank}"] = "update withheld"
    return vector


def _observe_process(trace: RankTrace, vector: Vector, spec: TrialSpec) -> None:
    process, where = trace.process, f"rank {trace.process.rank}"
    vector[Factor.CONFIG][where] = " ".join(_neutral(argument, spec) for argument in process.argv)
    vector[Factor.WORLD][where] = str(process.world)
    vector[Factor.DEVICE][where] = process.device
    vector[Factor.KERNELS][where] = _joined((*process.kernels, *(("optimizer", o) for o in process.optimizers)))
    vector[Factor.ENVIRONMENT][where] = _joined(
        (("python", process.python), ("threads", str(process.threads)), *process.packages, *process.env)
    )
    loaded = next((f for f in trace.fingerprints if f.step == trace.first_step), None)
    if loaded is not None:
        vector[Factor.CHECKPOINT][where] = f"step {trace.first_step}: {_digests(loaded, 'parameter')}"
        vector[Factor.OPTIMIZER_STATE][where] = _digests(loaded, "moment")


def _neutral(argument: str, spec: TrialSpec) -> str:
    """An argument without the checkpoint's path, which is a factor of its own."""
    return argument.replace(spec.checkpoint, "{checkpoint}") if spec.checkpoint else argument


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name}={value}" for name, value in sorted(pairs))


def _digests(fingerprint: Fingerprint, role: str) -> str:
    return " ".join(t.digest[:16] for t in fingerprint.tensors if t.role == role)


def _observe_step(step: StepRecord, rank: int, vector: Vector) -> None:
    where = f"step {step.step} rank {rank}"
    vector[Factor.BATCH][where] = " ".join(micro.batch[:16] for micro in step.micro_batches)
    vector[Factor.RNG][where] = _joined((name, digest[:16]) for name, digest in step.rng)
    vector[Factor.LEARNING_RATE][where] = " ".join(f"{lr:.9g}" for lr in step.lr)
    vector[Factor.CLIPPING][where] = "none" if step.clip_max_norm is None else f"{step.clip_max_norm:.9g}"
    vector[Factor.PRECISION][where] = step.precision


def differences(baseline: Vector, trial: Vector) -> tuple[FactorDifference, ...]:
    """The first place in which each factor differs, over the places that both trials reached."""
    found = []
    for factor in Factor:
        left, right = baseline[factor], trial[factor]
        differing = [place for place in left if place in right and left[place] != right[place]]
        if not differing:
            continue
        if factor is Factor.BATCH and _same_batches_other_order(left, right):
            found.append(FactorDifference(Factor.DATA_ORDER, differing[0], left[differing[0]], right[differing[0]]))
            continue
        place = differing[0]
        found.append(FactorDifference(factor, place, left[place], right[place]))
    return tuple(found)


def _same_batches_other_order(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
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
