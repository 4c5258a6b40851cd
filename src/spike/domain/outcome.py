"""Did the incident happen again in this trial? The signature, evaluated on what the trial logged.

The trial is compared at the steps where the record was anomalous, by the share of the incident's own distance
from its baseline that is left. Between "half of it is back" and "inside the baseline" lies `different`:
softened, which proves little (lower LR, stronger clipping and dropped moments soften almost any spike).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from spike.domain.incident import Incident, Kind, Signature
from spike.domain.signals import GRAD_NORM, LOSS, Series, Signals
from spike.domain.trial import Outcome, OutcomeKind

REPRODUCED_SHARE = 0.5
"""At least half of the incident's own excess: nearer to the incident than to the baseline."""
ABSENT_SHARE = 0.15
"""At most this share of the excess may be left when the threshold of the signature is narrower than it: a huge
incident (a loss of 40 where 2 is usual) is gone although the healthy trajectory moved by several sigmas."""
COMPARABLE = 0.25
"""A signature decides when it stands out of its baseline at least this far, compared with the clearest one. A gradient
norm that is 1.6 times the usual beside a NaN loss is weather, and would call healthy trials reproduced."""
DECISIVE = (LOSS, GRAD_NORM)
"""Signals of which one must be judged; others (update norm, loss scale) only accompany."""
SUSTAINED = frozenset({Kind.LEVEL_SHIFT, Kind.SLOW_DRIFT})
"""Kinds that are judged by the median over the steps, not by the worst one."""


@dataclass(frozen=True, slots=True)
class Window:
    """Logged steps in which a trial is judged."""

    first: int
    last: int
    excluded: frozenset[int] = frozenset()
    """Steps whose own values say nothing: a skipped batch's loss is computed before the update is withheld."""

    def holds(self, step: int) -> bool:
        """True where this logged step is judged."""
        return self.first <= step <= self.last and step not in self.excluded


@dataclass(frozen=True, slots=True)
class _Judged:
    signature: Signature
    share: float
    """Excess left, in shares of the incident's own within the same steps."""
    inside: bool
    clarity: float
    """The incident's own excess, in thresholds."""
    peak_value: float
    peak_step: int


def judge_outcome(
    incident: Incident,
    record: Signals,
    trial: Signals,
    window: Window,
    *,
    reference: Mapping[str, Series] | None = None,
    shift: int = 0,
) -> Outcome:
    """Judge one trial against the incident.

    `reference`: healthy values by signal at the trial's own steps, used as the centre where given (a transplant is
    judged at steps where the record was healthy). `shift` is added to a step of the record to get the trial's.
    """
    judged, unjudged = [], []
    for signature in incident.signatures:
        if signature.signal not in DECISIVE and any(s.signal in DECISIVE for s in incident.signatures):
            continue
        result = _judge_signature(signature, record, trial, window, reference or {}, shift)
        if isinstance(result, str):
            unjudged.append(result)
        else:
            judged.append(result)
    if not judged:
        return Outcome(
            OutcomeKind.UNTESTABLE, "; ".join(unjudged) or "the incident has no signature that a trial can be held to"
        )
    clearest = max(j.clarity for j in judged)
    return _decide([j for j in judged if j.clarity >= COMPARABLE * clearest])


def _judge_signature(
    signature: Signature, record: Signals, trial: Signals, window: Window, reference: Mapping[str, Series], shift: int
) -> _Judged | str:
    logged, replayed = record.get(signature.signal), trial.get(signature.signal)
    if logged is None or replayed is None:
        return f"the trial has no {signature.signal}"
    steps = [
        int(s)
        for s, v in zip(logged.steps, logged.values, strict=True)
        if window.holds(int(s)) and s >= signature.onset_step and _excess(signature, float(v)) > signature.threshold
    ]
    if not steps:
        return f"no anomalous {signature.signal} of the record lies in the judged steps {window.first}-{window.last}"
    pairs = [(s, _value(logged, s), replayed.at(s + shift)) for s in steps]
    missing = [s for s, _, value in pairs if value is None]
    if missing:
        return f"the trial logged no {signature.signal} at step {missing[0] + shift}"
    centre_of = reference.get(signature.signal)
    own = [_finite_excess(_excess(signature, value)) for _, value, _ in pairs]
    left = []
    for step, _, value in pairs:
        assert value is not None
        healthy = centre_of.at(step + shift) if centre_of is not None else None
        left.append(_finite_excess(_excess(signature, value, healthy)))
    return _summarise(signature, steps, own, left, [v for _, _, v in pairs if v is not None])


_NON_FINITE_EXCESS = 1e9
"""Stands for the excess of NaN and infinities, so that they compare with each other and beat any finite one."""


def _finite_excess(value: float) -> float:
    return value if math.isfinite(value) else _NON_FINITE_EXCESS


def _value(series: Series, step: int) -> float:
    value = series.at(step)
    assert value is not None
    return value


def _summarise(
    signature: Signature, steps: Sequence[int], own: Sequence[float], left: Sequence[float], values: Sequence[float]
) -> _Judged:
    if signature.kind in SUSTAINED:
        whole, remaining = median(own), median(left)
    else:
        whole, remaining = max(own), max(left)
    worst = max(range(len(left)), key=lambda i: left[i])
    share = remaining / whole if whole > 0 else 0.0
    clarity = whole / max(signature.threshold, 1e-12)
    return _Judged(signature, share, remaining <= signature.threshold, clarity, values[worst], steps[worst])


def _excess(signature: Signature, value: float, centre: float | None = None) -> float:
    """Distance beyond the baseline in the signature's direction and units; infinite for a non-finite value."""
    if not math.isfinite(value):
        return math.inf
    try:
        here = math.log(value) if signature.transform == "log" else value
        usual = signature.centre if centre is None else (math.log(centre) if signature.transform == "log" else centre)
    except ValueError:
        return math.inf
    return signature.direction * (here - usual)


def _decide(judged: Sequence[_Judged]) -> Outcome:
    strongest = max(judged, key=lambda j: j.share)
    text = "; ".join(_text(j) for j in judged)
    shares = tuple((j.signature.signal, j.share) for j in judged)
    facts = (strongest.signature.signal, strongest.peak_value, strongest.peak_step, strongest.share, shares)
    if any(j.share >= REPRODUCED_SHARE and not j.inside for j in judged):
        return Outcome(OutcomeKind.REPRODUCED, text, *facts)
    if all(j.inside or j.share <= ABSENT_SHARE for j in judged):
        return Outcome(OutcomeKind.ABSENT, text, *facts)
    return Outcome(OutcomeKind.DIFFERENT, f"softened, neither gone nor back: {text}", *facts)


def _text(judged: _Judged) -> str:
    value = f"{judged.peak_value:.6g}"
    if judged.share >= _NON_FINITE_EXCESS / 1e3:
        return f"{judged.signature.signal} is {value} at step {judged.peak_step}, beyond the incident's own excess"
    name, share = judged.signature.signal, f"{round(judged.share, 2) + 0.0:.0%}"
    return f"{name} peaks at {value} (step {judged.peak_step}), {share} of the incident's excess"


def anomalous_steps(incident: Incident, record: Signals, *, last: int) -> tuple[int, ...]:
    """Logged steps up to `last` at which any decisive signal of the record is beyond its threshold."""
    found: set[int] = set()
    for signature in incident.signatures:
        series = record.get(signature.signal)
        if series is None or signature.signal not in DECISIVE:
            continue
        found |= {
            int(s)
            for s, v in zip(series.steps, series.values, strict=True)
            if signature.onset_step <= s <= last and _excess(signature, float(v)) > signature.threshold
        }
    return tuple(sorted(found))
