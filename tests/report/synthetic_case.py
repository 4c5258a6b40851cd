"""A corrupt batch at step 222, as every step of the runbook would have left it: facts, and the case on disk."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from spike.casefile.case import Case, create_case
from spike.casefile.codec import to_payload
from spike.casefile.manifest import take_stock, write_manifest
from spike.casefile.signals_store import write_signals
from spike.domain.case import CaseFacts, PinnedCheckpoint
from spike.domain.facts import CheckReport, Fact
from spike.domain.gate import Condition, ConditionState, GateDecision
from spike.domain.incident import Incident, Kind, Severity, Signature
from spike.domain.manifest import Exclusion
from spike.domain.run import Prices, Run
from spike.domain.signals import Series, Signals, Source
from spike.domain.timeline import Act, count_impact, logged_step_time
from spike.domain.trial import (
    Factor,
    FactorDifference,
    Grade,
    Intervention,
    Licence,
    NoiseFloor,
    Outcome,
    OutcomeKind,
    TrialResult,
    TrialSpec,
)
from spike.domain.verdict import CauseClass, Finding, Place, Rejected, Status, Strength, Suggestion, Verdict
from spike.report.facts import EvidenceRow, PostmortemFacts

ONSET, PEAK, LAST_GOOD, END = 222, 223, 200, 260


def signals(end: int = END) -> Signals:
    """Loss and gradient norm of 260 steps: a spike at 222 that comes back by 250, and one NaN while it lasts."""
    rng = np.random.default_rng(7)
    steps = np.arange(1, end + 1)
    loss = 2.1 + 2.4 * np.exp(-steps / 60) + rng.normal(0, 0.02, end)
    grad = 0.42 * np.exp(rng.normal(0, 0.08, end))
    since = steps - ONSET
    hit = since >= 0
    loss[hit] += 4.6 * np.exp(-np.maximum(since[hit] - 1, 0) / 6)
    loss[steps == ONSET] -= 3.9
    grad[hit] *= 1 + 28 * np.exp(-since[hit] / 3.5)
    grad[steps == PEAK + 1] = math.nan
    lr = np.full(end, 3e-4)
    series = (
        Series("loss", steps, np.round(loss, 4), source="logs/metrics.jsonl", column="loss", digits=5),
        Series("grad_norm", steps, np.round(grad, 4), source="logs/metrics.jsonl", column="grad_norm", digits=5),
        Series("lr", steps, lr, source="logs/metrics.jsonl", column="lr", digits=2),
        Series("step_time_s", steps, np.full(end, 3.1), source="logs/metrics.jsonl", column="step_time_s", digits=2),
    )
    return Signals(series, (Source("logs/metrics.jsonl", "jsonl", end, 1, end),))


def incident() -> Incident:
    """The gradient norm moves first; the loss peaks a step later."""
    grad = Signature("grad_norm", Kind.SPIKE, "log", math.log(0.42), 0.08, 0.64, 1, ONSET, ONSET, 12.18, 240)
    loss = Signature("loss", Kind.SPIKE, "identity", 2.16, 0.02, 0.16, 1, ONSET, PEAK, 6.7549, 244)
    hint = "the ratio 29 is no factor of accumulation, world size or loss scale"
    return Incident(
        Kind.SPIKE, Severity.TRANSIENT, ONSET, PEAK, "grad_norm", 1, 29.0, True, None, (grad, loss), (hint,)
    )


def case_facts(run_directory: str = "/runs/owl-7b") -> CaseFacts:
    """What case.yaml holds."""

    def pinned(step: int) -> PinnedCheckpoint:
        name = f"step-{step:06d}"
        return PinnedCheckpoint(step, f"{run_directory}/out/{name}", f"evidence/pinned/{name}", "reflink")

    run = Run(
        run_directory,
        launch="torchrun --nproc-per-node 8 train.py --resume {checkpoint} --out {workdir}",
        devices=64,
        prices=Prices(2.5, "USD"),
    )
    return CaseFacts(
        id="20261130T031502Z-step-222",
        created="2026-11-30T03:15:02Z",
        operator="ada",
        spike_version="0.1.0",
        run=run,
        incident=incident(),
        last_good=pinned(LAST_GOOD),
        earlier=(pinned(150),),
        suspect=(pinned(250),),
        not_pinned=((f"{run_directory}/out/step-000100", "shard model-00002.pt ends after 4096 of 81920 bytes"),),
    )


def checks() -> CheckReport:
    """Facts that need no GPU, one of them not measured."""
    return CheckReport(
        (
            Fact("signal.non-finite", "no", "the loss stays finite at the onset", ("signal:loss",)),
            Fact("lr.discontinuity", "no", "the logged LR is constant at 0.0003 from step 190 to 240", ("signal:lr",)),
            Fact("checkpoint.integrity", "whole", "all 12 files of step 200 are complete", ("checkpoint:step-200",)),
            Fact("checkpoint.finite", "yes", "all 291 tensors of step 200 are finite", ("checkpoint:step-200",)),
            Fact("code.changed", "no", "the same commit 4f2a91c before and after the onset", ("check:source",)),
            Fact("hardware.events", "not-measured", "no hardware log was given (hardware: in spike.yaml)"),
        ),
        (
            (
                "Checkpoints",
                (
                    ("checkpoint", "step", "integrity", "tensors", "non-finite"),
                    ("out/step-000150", "150", "complete", "291", "0"),
                    ("out/step-000200", "200", "complete", "291", "0"),
                    ("out/step-000250", "250", "complete", "291", "0"),
                ),
            ),
        ),
    )


LICENCE = Licence(Grade.LOG_EXACT, "steps 201-220 agree in all 5 logged digits", ("loss", "grad_norm"), 20)
NOISE = NoiseFloor(2, False, (("loss", 0.0008), ("grad_norm", 0.004)))


def _trial(
    number: int,
    label: str,
    kind: OutcomeKind,
    excess: float,
    reason: str,
    *,
    change: Intervention | None = None,
    role: str = "branch",
    start: int = LAST_GOOD,
    stop: int = 226,
) -> TrialResult:
    spec = TrialSpec(
        id=f"T{number:03d}-{label}",
        purpose=f"{label.replace('-', ' ')} from step {start}",
        checkpoint=f"/runs/owl-7b/out/step-{start:06d}",
        first_step=start,
        stop_after=stop,
        intervention=change,
        role=role,
    )
    differences = ()
    if change is not None:
        differences = (FactorDifference(change.factor, "step 222 rank 0", "9c1f0a", "e77d21"),)
    effect = None if change is None else kind is not OutcomeKind.UNTESTABLE
    peak = 2.16 + 4.59 * excess
    outcome = Outcome(kind, reason, "loss", peak, PEAK, excess)
    return TrialResult(spec, outcome, "overlay", 96.0 + number, differences, effect, "window-complete")


def trials() -> tuple[TrialResult, ...]:
    """Nine trials: the four cells, three specific changes, one that did not act, and the window of the gate."""

    def change(name: str, factor: Factor, *steps: int, **parameters: float) -> Intervention:
        return Intervention(name, factor, steps, tuple(parameters.items()))

    batch, precision = Factor.BATCH, Factor.PRECISION
    return (
        _trial(1, "replay", OutcomeKind.REPRODUCED, 0.998, "the loss reached 6.74 at step 223", role="baseline"),
        _trial(3, "control-batch", OutcomeKind.ABSENT, 0.01, "the loss stayed below 2.21",
               change=change("control-batch", batch, 222)),
        _trial(4, "control-batch-placebo", OutcomeKind.REPRODUCED, 0.991, "the loss reached 6.71 at step 223",
               change=change("control-batch", batch, 219), role="placebo"),
        _trial(5, "transplant", OutcomeKind.REPRODUCED, 0.87, "the healthy state of step 150 spikes on this batch",
               change=change("transplant", batch, 154), role="reversal", start=150, stop=160),
        _trial(6, "scheduled-lr", OutcomeKind.REPRODUCED, 0.996, "the loss reached 6.73 at step 223",
               change=change("scheduled-lr", Factor.LEARNING_RATE, lr=3e-4)),
        _trial(7, "clip", OutcomeKind.DIFFERENT, 0.34, "softened: 34 % of the incident is left",
               change=change("clip", Factor.CLIPPING, 222, 223, max_norm=0.5)),
        _trial(8, "full-precision", OutcomeKind.REPRODUCED, 1.004, "the loss reached 6.77 at step 223",
               change=change("full-precision", precision)),
        _trial(9, "safe-kernels", OutcomeKind.UNTESTABLE, 0.0, "the change did not take effect: attention stayed fused",
               change=change("safe-kernels", Factor.KERNELS)),
        _trial(12, "gate-skip-batch", OutcomeKind.ABSENT, 0.0, "the loss stayed below 2.20",
               change=change("skip-batch", batch, 222), role="gate", stop=240),
    )  # fmt: skip


def verdict() -> Verdict:
    """Established, with its place."""
    return Verdict(
        Status.ESTABLISHED,
        CauseClass.DATA,
        "data/corrupt-batch",
        ONSET,
        "confirmed by T003-control-batch (absent), T004-control-batch-placebo (reproduced) and T005-transplant",
        Place(samples=(3, 7), file="shard-00017.bin"),
        ("T003-control-batch", "T004-control-batch-placebo", "T005-transplant"),
        (
            Finding("the batch of step 222 alone brings the spike into a healthy state", Strength.INTERVENED,
                    ("T005-transplant",)),
            Finding("another batch at step 222 leaves the loss on its trend", Strength.INTERVENED,
                    ("T003-control-batch", "T004-control-batch-placebo")),
            Finding("samples 3 and 7 hold one token repeated 1,024 times", Strength.OBSERVED, ("check:batch",)),
        ),
        (
            Rejected("optimization/learning-rate-jump", "the learning rate is on its schedule (lr.discontinuity: no)"),
            Rejected("numerics/low-precision-overflow",
                     "T008-full-precision was reproduced, and it would have been absent"),
            Rejected("data/batch-meets-state", "T005-transplant was reproduced, and it would have been absent"),
        ),
        (),
        9,
        (Suggestion("safe-kernels", "the launch command has no switch for it (knobs: safe-kernels)"),),
    )  # fmt: skip


def gate() -> GateDecision:
    """Open, with one waived condition."""
    return GateDecision(
        True,
        "skip the batch of step 222, by content digest 9c1f0a",
        (
            Condition("loss-on-trend", ConditionState.HOLDS, "mean 2.164 over 20 steps, trend 2.161 ± 0.009",
                      ("T012-gate-skip-batch",)),
            Condition("update-norm", ConditionState.HOLDS, "0.0121, within 0.0118-0.0126 of the control",
                      ("T012-gate-skip-batch",)),
            Condition("throughput", ConditionState.HOLDS, "3.1 s a step, as before", ("T012-gate-skip-batch",)),
            Condition("held-out", ConditionState.NOT_MEASURED, "spike.yaml has no holdout command", (), "grace"),
        ),
        "the incident follows the batch (T005-transplant) and leaves with it (T003-control-batch), not with a placebo",
        "torchrun --nproc-per-node 8 train.py --resume out/step-000200 --skip-digest 9c1f0a",
        "torchrun --nproc-per-node 8 train.py --resume out/step-000150",
        ("T012-gate-skip-batch",),
    )  # fmt: skip


def build_case(cases: Path, *, through: str = "gate", run_directory: str | None = None) -> Case:
    """The case on disk, as far as the step `through` of the runbook."""
    order = ("freeze", "check", "replay", "bisect", "gate")
    done = order[: order.index(through) + 1]
    facts = case_facts(run_directory or "/runs/owl-7b")
    case = create_case(cases, facts)
    _freeze(case)
    if "check" in done:
        case.write_json("checks.json", to_payload(checks(), schema="spike.checks/1"))
        case.record("check", "no check found anything; 1 not measured", 0, ("checks.json",))
    if "replay" in done:
        _replay(case)
    if "bisect" in done:
        _bisect(case)
    if "gate" in done:
        _write_trials(case, trials()[-1:])
        case.write_json("gate.json", to_payload(gate(), schema="spike.gate/1"))
        case.record("gate", "open: skip the batch of step 222", 0, ("gate.json",))
    return case


def _freeze(case: Case) -> None:
    for step in (150, 200, 250):
        pinned = case.path / "evidence" / "pinned" / f"step-{step:06d}"
        pinned.mkdir(parents=True)
        (pinned / "model.pt").write_bytes(bytes([step % 251]) * 4096)
    (case.path / "evidence" / "source").mkdir()
    (case.path / "evidence" / "source" / "train.py").write_text("print('training')\n")
    write_signals(case.path, signals())
    manifest = take_stock(case.path / "evidence", exclusions=(Exclusion("logs/rank3.log", "permission denied"),))
    paths = write_manifest(case.path, manifest)
    case.record("freeze", "3 checkpoints pinned, 5 files hashed; step-000200 is the last good one", 0, paths)


def _replay(case: Case) -> None:
    payload = {"licence": to_payload(LICENCE), "noise": to_payload(NOISE)}
    case.write_json("licence.json", {"schema": "spike.licence/1", **payload})
    _write_trials(case, trials()[:1])
    repeat = replace(trials()[0].spec, id="T002-repeat-1", role="repeat", purpose="the unchanged trial again (1)")
    case.trial_dir(repeat.id)
    case.write_json(f"trials/{repeat.id}/trial.json", to_payload(repeat, schema="spike.trial/1"))
    case.write_json(f"trials/{repeat.id}/run.json", {"schema": "spike.trial-run/1"})
    case.record("replay", "licensed within log rounding; the incident came back", 0, ("licence.json",))


def _bisect(case: Case) -> None:
    _write_trials(case, trials()[1:-1])
    for result in trials()[1:-1]:
        case.record(f"trial {result.spec.id}", f"{result.outcome.kind.value}: {result.outcome.reason}", 0)
    case.write_json("verdict.json", to_payload(verdict(), schema="spike.verdict/1"))
    case.record("bisect", "established: data/corrupt-batch at step 222", 0, ("verdict.json",))


def _write_trials(case: Case, results: tuple[TrialResult, ...]) -> None:
    for result in results:
        directory = case.trial_dir(result.spec.id)
        case.write_json(f"trials/{result.spec.id}/trial.json", to_payload(result.spec, schema="spike.trial/1"))
        case.write_json(f"trials/{result.spec.id}/outcome.json", to_payload(result, schema="spike.outcome/1"))
        (directory / "trace").mkdir(exist_ok=True)
        start = {"t": "start", "schema": "spike.trace/1", "rank": 0, "world": 64, "first_step": result.spec.first_step}
        steps = range(result.spec.first_step + 1, result.spec.stop_after + 1)
        lines = [start, *({"t": "step", "step": s, "applied": True, "seconds": 4.0, "lr": [3e-4]} for s in steps)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / "trace" / "rank00000.jsonl").write_text(text)


def facts() -> PostmortemFacts:
    """The whole case as facts, without a disk and with fixed times."""
    times = ("03:15:02", "03:15:40", "03:18:05", "03:41:11")
    commands = (
        ("freeze", "3 checkpoints pinned, 5 files hashed; step-000200 is the last good one"),
        ("check", "no check found anything; 1 not measured"),
        ("replay", "licensed within log rounding; the incident came back"),
        ("bisect", "established: data/corrupt-batch at step 222"),
    )
    done = tuple(
        Act(f"2026-11-30T{t}Z", "ada", command, summary, 0, line)
        for line, (t, (command, summary)) in enumerate(zip(times, commands, strict=True), 2)
    )
    gated = Act("2026-11-30T04:20:00Z", "grace", "gate", "open: skip the batch of step 222", 0, 6)
    record, case = signals(), case_facts()
    step_time = logged_step_time(record, ONSET)
    assert step_time is not None
    return PostmortemFacts(
        case=case,
        acts=(*done, gated),
        chain_digest="5f" * 32,
        signals=record,
        checks=checks(),
        facts=checks().facts,
        licence=LICENCE,
        noise=NOISE,
        trials=trials(),
        unjudged=(("T013-reseed", "it was started and has not come to an end"),),
        verdict=verdict(),
        gate=gate(),
        evidence=(
            EvidenceRow("evidence/pinned/step-000200/model.pt", "out/step-000200/model.pt", 13_958_643_712, "ab" * 32),
            EvidenceRow("evidence/signals.parquet", "written by spike", 4_961, "cd" * 32),
        ),
        algorithm="SHA-256",
        gaps=(("logs/rank3.log", "permission denied"),),
        artefacts=(EvidenceRow("case.yaml", "", 1_604, "ef" * 32), EvidenceRow("verdict.json", "", 1_702, "01" * 32)),
        impact=count_impact(case, END, step_time, trials()),
    )
