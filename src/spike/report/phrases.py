"""How is a fact said in one sentence, the same in the report and on the terminal?"""

from __future__ import annotations

import math

from spike.domain.incident import Incident, Kind, Severity, Signature
from spike.domain.signals import GRAD_NORM, LEARNING_RATE, LOSS
from spike.domain.trial import Grade, Intervention, Licence, NoiseFloor, OutcomeKind, TrialResult
from spike.domain.verdict import Place, Status
from spike.report.document import Tone
from spike.report.text import name, number, plural, visible

KIND_WORDS: dict[Kind, str] = {
    Kind.SPIKE: "loss spike",
    Kind.DIVERGENCE: "divergence",
    Kind.NON_FINITE: "non-finite values",
    Kind.LEVEL_SHIFT: "level shift",
    Kind.SLOW_DRIFT: "slow drift",
    Kind.DROP: "drop",
    Kind.SKIPPED_STEPS: "run of skipped steps",
    Kind.FROZEN: "frozen training",
}
MAX_PARAMETER_CHARS = 60
"""A longer parameter (a donor file for every micro-batch) is left to trial.json."""
SIGNAL_WORDS = {LOSS: "the loss", GRAD_NORM: "the gradient norm", LEARNING_RATE: "the learning rate"}
STATUS_TONE = {Status.ESTABLISHED: Tone.GOOD, Status.SUPPORTED: Tone.WARN, Status.UNDETERMINED: Tone.QUIET}
OUTCOME_TONE = {
    OutcomeKind.REPRODUCED: Tone.BAD,
    OutcomeKind.ABSENT: Tone.GOOD,
    OutcomeKind.DIFFERENT: Tone.WARN,
    OutcomeKind.UNTESTABLE: Tone.QUIET,
}


def signal_words(signal: str) -> str:
    """ "the loss", "the gradient norm", or the column's own name."""
    return SIGNAL_WORDS.get(signal, name(signal))


def usual_value(signature: Signature) -> float:
    """The baseline's centre at the onset, in the signal's own units."""
    return _raw(signature, signature.centre)


def limit_value(signature: Signature) -> float:
    """The value beyond which the signature says "it happened", in the signal's own units."""
    return _raw(signature, signature.centre + signature.direction * signature.threshold)


def _raw(signature: Signature, transformed: float) -> float:
    if signature.transform != "log":
        return transformed
    return math.exp(transformed) if transformed < 700 else math.inf


def incident_words(incident: Incident) -> str:
    """Where it began, which signal moved first and how far, and the loss at its worst."""
    first = incident.signature(incident.first_signal)
    text = f"At step {incident.onset_step:,} {signal_words(incident.first_signal)} left its baseline"
    if not math.isfinite(incident.ratio) or (first is not None and not math.isfinite(first.peak_value)):
        text += " and became non-finite."
    elif first is not None:
        text += f": {number(first.peak_value)} at its peak, where {number(usual_value(first))} is usual."
    else:
        text += f" and reached {number(incident.ratio)} times its usual value."
    loss = incident.signature(LOSS)
    if loss is not None and incident.first_signal != LOSS:
        text += (
            f" The loss went from {number(usual_value(loss))} to {number(loss.peak_value)} at step {loss.peak_step:,}"
        )
        text += f", {plural(incident.lead_steps, 'step')} after the onset." if incident.lead_steps else "."
    return text


def recovery_words(incident: Incident) -> str:
    """Whether the run came back to its trend."""
    if incident.recovered:
        return "The run came back to its trend by itself."
    if incident.severity is Severity.FATAL:
        return "The run did not come back."
    return "The run went on and has not come back to its trend."


def place_words(place: Place) -> tuple[tuple[str, str], ...]:
    """(what, where) for every field that was localised."""
    found: list[tuple[str, str]] = []
    if place.samples:
        found.append(("samples of the batch", steps_words(place.samples)))
    if place.rank is not None:
        found.append(("rank", str(place.rank)))
    named = (
        ("module", place.module),
        ("tensor", place.tensor),
        ("commit", place.commit),
        ("file", place.file),
        ("config key", place.key),
    )
    return (*found, *((what, name(where)) for what, where in named if where))


def place_phrase(place: Place) -> str:
    """Every localised field in one phrase: "samples 3, 7 of the batch, file shard-00017.bin"."""
    phrases = [
        f"samples {w} of the batch" if what.startswith("samples") else f"{what} {w}" for what, w in place_words(place)
    ]
    return ", ".join(phrases)


def change_words(intervention: Intervention | None) -> str:
    """What a trial changed: "skip-batch (steps 222)", or "nothing"."""
    if intervention is None:
        return "nothing"
    shown = ((key, _parameter(value)) for key, value in intervention.parameters)
    details = [f"{visible(key)}={text}" for key, text in shown if len(text) <= MAX_PARAMETER_CHARS]
    if intervention.steps:
        details.insert(0, f"{'step' if len(intervention.steps) == 1 else 'steps'} {steps_words(intervention.steps)}")
    return name(intervention.name) + (f" ({', '.join(details)})" if details else "")


def _parameter(value: object) -> str:
    if isinstance(value, tuple):
        if all(isinstance(item, int) for item in value):
            return steps_words(value)
        return "[" + ", ".join(_parameter(item) for item in value) + "]"
    return number(value) if isinstance(value, float) else name(str(value))


def steps_words(steps: tuple[int, ...]) -> str:
    """Steps (or samples) as ranges: "221-224, 230"."""
    runs: list[list[int]] = []
    for step in sorted(set(steps)):
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(f"{r[0]}" if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def effect_words(result: TrialResult) -> str:
    """Whether the change was seen to act."""
    match result.took_effect:
        case None:
            return "–"
        case True:
            return "yes"
        case False:
            return "no"


def share_words(result: TrialResult) -> str:
    """How much of the incident was left."""
    if result.outcome.kind is OutcomeKind.UNTESTABLE:
        return "–"
    if not math.isfinite(result.outcome.excess):
        return "non-finite"
    return f"{round(100 * result.outcome.excess)}%"


def difference_words(result: TrialResult) -> str:
    """Observed differences from the baseline trial, by factor."""
    factors = dict.fromkeys(d.factor.value for d in result.differences)
    return ", ".join(factors) if factors else "none"


def licence_words(licence: Licence) -> str:
    """Whether replays count, and on how many steps that stands."""
    if licence.grade is Grade.REFUSED:
        return "Refused: no outcome of a trial counts."
    compared = plural(licence.num_steps, "healthy step")
    signals = f" in {', '.join(name(s) for s in licence.signals)}" if licence.signals else ""
    offset = f" The log counts {licence.step_offset:+d} against attempted steps." if licence.step_offset else ""
    return f"Holds, {licence.grade.value}: {compared} before the onset reproduce the record{signals}.{offset}"


def noise_words(noise: NoiseFloor) -> str:
    """How far the unchanged trial differs from itself."""
    repeated = plural(noise.num_repeats, "repeat")
    if noise.bit_exact:
        return f"{repeated} of the unchanged trial: identical to the last bit."
    spread = ", ".join(f"{name(signal)} ±{number(value)}" for signal, value in noise.spread)
    return f"{repeated} of the unchanged trial differ by {spread or 'an unmeasured amount'}."
