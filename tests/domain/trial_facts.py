"""Small builders of domain facts for tests: every argument that a test does not care about has a plain value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from spike.domain.incident import Incident, Kind, Severity, Signature
from spike.domain.measured import NotMeasured
from spike.domain.signals import Series, Signals
from spike.domain.trace import Effect, Fingerprint, MicroBatch, ProcessFacts, RankTrace, StepRecord, TensorPrint
from spike.domain.trial import Intervention, TrialRun, TrialSpec


def series(name: str, values: Mapping[int, float], *, digits: int = 17) -> Series:
    return Series(
        name,
        np.array(list(values), dtype=np.int64),
        np.array(list(values.values()), dtype=np.float64),
        digits=digits,
    )


def signals(**columns: Mapping[int, float]) -> Signals:
    return Signals(series=tuple(series(name, values) for name, values in columns.items()))


def healthy_then(peak: float, *, onset: int = 21, last: int = 24) -> dict[int, float]:
    """Loss 2.0 up to the onset, `peak` there, healed after it."""
    return {s: (peak if s == onset else 2.0 + 0.001 * (s % 3)) for s in range(1, last + 1)}


def signature(*, signal: str = "loss", onset: int = 21, peak: float = 6.0, kind: Kind = Kind.SPIKE) -> Signature:
    return Signature(
        signal=signal,
        kind=kind,
        transform="log",
        centre=math.log(2.0),
        scale=0.001,
        threshold=0.01,
        direction=1,
        onset_step=onset,
        peak_step=onset,
        peak_value=peak,
        last_step=onset,
    )


def incident(*signatures: Signature, onset: int = 21) -> Incident:
    chosen = signatures or (signature(onset=onset),)
    return Incident(
        kind=chosen[0].kind,
        severity=Severity.TRANSIENT,
        onset_step=onset,
        peak_step=chosen[0].peak_step,
        first_signal=chosen[0].signal,
        lead_steps=0,
        ratio=3.0,
        recovered=True,
        rank=None,
        signatures=chosen,
    )


def step(
    number: int,
    *,
    loss: float = 2.0,
    grad_norm: float = 1.0,
    lr: float = 1e-3,
    batch: str = "",
    clip: float | None = 1.0,
    precision: str = "autocast=off params=float32",
    applied: bool = True,
    supervised: int | NotMeasured = 8,
    update_norm: float = 0.01,
    seconds: float = 0.1,
) -> StepRecord:
    micro = MicroBatch(loss, batch or f"batch-{number:04d}-0123456789", 8, supervised, 4)
    return StepRecord(
        step=number,
        micro_batches=(micro,),
        loss=loss,
        grad_norm=grad_norm,
        num_nonfinite_grads=0,
        clip_max_norm=clip,
        lr=(lr,),
        applied=applied,
        update_norm=update_norm,
        param_norm=10.0,
        loss_scale=NotMeasured("no scaler"),
        precision=precision,
        rng=(("torch", f"rng-{number}"),),
        seconds=seconds,
    )


def trace(
    steps: Sequence[StepRecord],
    *,
    rank: int = 0,
    world: int = 1,
    first_step: int = 10,
    fingerprints: Sequence[Fingerprint] = (),
    effects: Sequence[Effect] = (),
    argv: tuple[str, ...] = ("train.py",),
) -> RankTrace:
    process = ProcessFacts(
        rank=rank,
        world=world,
        host="node-1",
        device="cpu",
        argv=argv,
        python="3.11.7",
        packages=(("torch", "2.13.0"),),
        threads=1,
        kernels=(("deterministic", "False"),),
        env=(),
        optimizers=("AdamW betas=(0.9, 0.95)",),
    )
    return RankTrace(
        process, first_step, tuple(steps), tuple(fingerprints), effects=tuple(effects), end="window-complete"
    )


def tensor(name: str, digest: str, *, role: str = "parameter", index: int = 0, key: str = "") -> TensorPrint:
    return TensorPrint(role, name, index, key, "float32", (4, 4), digest, 1.0, 0)


def spec(*, intervention: Intervention | None = None, first: int = 10, stop: int = 24, commit: str = "") -> TrialSpec:
    return TrialSpec(
        id="T001-replay",
        purpose="test",
        checkpoint="/run/ckpt/step-10.pt",
        first_step=first,
        stop_after=stop,
        intervention=intervention,
        commit=commit,
    )


def trial_run(*traces: RankTrace, of: TrialSpec | None = None) -> TrialRun:
    return TrialRun(
        spec=of or spec(),
        ended="window-complete",
        exit_code=0,
        seconds=3.0,
        guard="overlay",
        traces=traces,
        batches=(),
        metrics_dir="",
    )
