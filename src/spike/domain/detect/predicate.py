"""Did it happen again? A signature's predicate, applied to one value of another record of the same steps."""

from __future__ import annotations

import math

from spike.domain.incident import Kind, Signature


def transformed(signature: Signature, value: float) -> float:
    """The value in the signature's units; a value that a logarithm cannot take counts as minus infinity."""
    if signature.transform == "identity" or not math.isfinite(value):
        return value
    return math.log(value) if value > 0 else -math.inf


def exceeds(signature: Signature, value: float) -> bool:
    """Whether this value is anomalous by the signature: beyond its threshold in its direction, or not finite."""
    if not math.isfinite(value):
        return True
    return distance(signature, value) > signature.threshold


def distance(signature: Signature, value: float) -> float:
    """How far the value lies from the centre in the signature's direction, in transformed units."""
    return signature.direction * (transformed(signature, value) - signature.centre)


def excess(signature: Signature, value: float) -> float:
    """Distance from the centre as a fraction of the incident's own peak distance: 1 is the incident again.

    A value that is not finite is infinitely far. For an incident whose peak was not finite, a finite value
    within the threshold gives 0 and one beyond it the multiple of the threshold.
    """
    if not math.isfinite(value):
        return math.inf
    away = distance(signature, value)
    if not math.isfinite(signature.peak_value) or signature.kind is Kind.NON_FINITE:
        if away <= signature.threshold:
            return 0.0
        return away / signature.threshold if signature.threshold > 0 else math.inf
    peak = distance(signature, signature.peak_value)
    if not math.isfinite(peak) or peak <= 0:
        return 1.0 if away > signature.threshold else 0.0
    return away / peak
