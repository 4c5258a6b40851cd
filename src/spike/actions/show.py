"""What is really in there? A captured batch, a trial, the signals, the tensors of a checkpoint, the formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.actions.answers import read_artefact
from spike.casefile.case import Case
from spike.casefile.codec import from_payload
from spike.casefile.signals_store import Answer, query_signals
from spike.domain.checkpoint import Checkpoint, TensorFacts
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.trace import CapturedBatch, RankTrace
from spike.domain.trial import TrialResult, TrialSpec
from spike.lab.traces import read_batches, read_traces

BATCH_SCHEMA = "spike.batch/1"
IGNORE_INDEX = -100
"""torch's own default for labels that the loss leaves out."""
PLAUSIBLE_SHARE = 0.9
"""Share of printable characters from which token ids below 256 are shown as text."""
MAX_IDS = 48


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a captured tensor."""

    position: int
    ids: tuple[int, ...]
    """The first of them."""
    num_ids: int
    num_distinct: int
    most_common: tuple[int, float]
    """(id, share of the row): a row of one token repeated shows here."""
    num_ignored: int
    text: str
    """The ids as bytes, where they plausibly are text; else ""."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """One tensor of a captured micro-batch."""

    site: str
    """Where it entered the model or the loss."""
    dtype: str
    shape: tuple[int, ...]
    samples: tuple[Sample, ...]
    """Rows of an integer tensor; () for anything else."""
    summary: str
    """Range and non-finite count of a floating tensor; "" for an integer one."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """One captured micro-batch."""

    captured: CapturedBatch
    tensors: tuple[TensorView, ...]


@dataclass(frozen=True, slots=True)
class TrialView:
    """Declared against observed."""

    spec: TrialSpec
    result: TrialResult | None
    traces: tuple[RankTrace, ...]


@dataclass(frozen=True, slots=True)
class TensorTable:
    """A checkpoint and the tensors asked for."""

    checkpoint: Checkpoint
    tensors: tuple[TensorFacts, ...]
    unreadable: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Format:
    """One format that spike reads."""

    kind: str
    """"checkpoint", "metrics", "hardware"."""
    name: str
    about: str


def trial_named(case: Case, wanted: str) -> str:
    """The id of the trial meant by `wanted`: the whole id, its number ("T003" or "3") or its name.

    Raises `SpikeError` where none or several fit.
    """
    ids = [i for i in case.trial_ids() if (case.path / "trials" / i / "trial.json").is_file()]
    number = wanted.removeprefix("T")
    exact = [i for i in ids if i == wanted]
    near = [i for i in ids if i.partition("-")[2] == wanted or (number.isdigit() and i[1:4] == number.zfill(3))]
    found = exact or near
    if len(found) == 1:
        return found[0]
    listed = ", ".join(found or ids) or "none"
    problem = f"{wanted!r} fits {len(found)} trials" if found else f"{case.path} has no trial {wanted!r}"
    raise SpikeError(f"{problem}; there are: {listed}", hint="spike show trial TRIAL with a whole id")


def show_trial(case: Case, wanted: str) -> TrialView:
    """The declared and the observed half of a trial. Raises `SpikeError`."""
    trial_id = trial_named(case, wanted)
    relative = f"trials/{trial_id}/trial.json"
    payload = case.read_json(relative)
    assert payload is not None, "trial_named found it"
    return TrialView(
        from_payload(TrialSpec, payload, schema="spike.trial/1", source=str(case.path / relative)),
        read_artefact(case, f"trials/{trial_id}/outcome.json", TrialResult, "spike.outcome/1"),
        read_traces(case.path / "trials" / trial_id),
    )


def show_batch(case: Case, wanted: str, *, step: int | None = None, rank: int | None = None) -> tuple[BatchView, ...]:
    """The captured micro-batches of a trial, of one step and rank if given. Raises `SpikeError`."""
    trial_id = trial_named(case, wanted)
    captured = read_batches(case.path / "trials" / trial_id)
    chosen = [b for b in captured if step in (None, b.step) and rank in (None, b.rank)]
    if not chosen:
        steps = ", ".join(str(s) for s in sorted({b.step for b in captured})) or "none"
        raise SpikeError(
            f"{trial_id} kept no such batch; the steps with one are: {steps}",
            hint="the unchanged trial keeps the batches around the onset: spike show batch replay",
        )
    return tuple(BatchView(b, _tensors(Path(b.path))) for b in chosen)


def _tensors(path: Path) -> tuple[TensorView, ...]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputUnreadable(f"{path} is gone", hint="spike verify") from None
    except Exception as error:  # torch raises whatever its unpickler meets in a damaged file
        raise InputUnreadable(f"cannot read {path}: {type(error).__name__}: {error}", hint="spike verify") from error
    if not isinstance(loaded, dict) or loaded.get("schema") != BATCH_SCHEMA:
        raise InputUnreadable(f"{path} is not a captured batch ({BATCH_SCHEMA})", hint="spike verify")
    return tuple(
        _view(str(site["site"]), tensor)
        for site in loaded["sites"]
        for tensor in site["tensors"]
        if isinstance(tensor, torch.Tensor)
    )


def _view(site: str, tensor: Any) -> TensorView:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(int(n) for n in tensor.shape)
    if tensor.is_floating_point():
        return TensorView(site, dtype, shape, (), _range_of(tensor))
    if tensor.dim() == 0 or tensor.is_complex():
        return TensorView(site, dtype, shape, (), f"value {tensor.item()}" if tensor.numel() == 1 else "")
    rows = tensor.reshape(shape[0], -1).tolist()
    return TensorView(site, dtype, shape, tuple(_sample(i, [int(v) for v in row]) for i, row in enumerate(rows)), "")


def _range_of(tensor: Any) -> str:
    import torch

    finite = tensor[torch.isfinite(tensor)].double()
    bad = tensor.numel() - finite.numel()
    if not finite.numel():
        return f"{bad} non-finite of {tensor.numel()}"
    return f"{finite.min().item():.6g} to {finite.max().item():.6g}, {bad} non-finite of {tensor.numel()}"


def _sample(position: int, ids: list[int]) -> Sample:
    kept = [i for i in ids if i != IGNORE_INDEX]
    counts: dict[int, int] = {}
    for token in kept:
        counts[token] = counts.get(token, 0) + 1
    token, count = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    share = count / len(kept) if kept else 0.0
    return Sample(
        position, tuple(ids[:MAX_IDS]), len(ids), len(counts), (token, share), len(ids) - len(kept), as_text(kept)
    )


def as_text(ids: list[int]) -> str:
    """The ids as UTF-8 bytes, where that gives text; "" where they are ids of a larger vocabulary or noise."""
    if not ids or min(ids) < 0 or max(ids) > 255:
        return ""
    text = bytes(ids).decode("utf-8", errors="replace")
    plain = sum((c.isprintable() and c != "\ufffd") or c in "\n\t" for c in text)
    return text if plain >= PLAUSIBLE_SHARE * len(text) else ""


def show_tensor(path: Path, wanted: str = "", *, on_bytes: Callable[[int], None] | None = None) -> TensorTable:
    """Statistics of the tensors of a checkpoint whose name is `wanted`, or else contains it.

    Raises `InputUnreadable` where no layout knows the path, `SpikeError` where no tensor fits.
    """
    from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint

    checkpoint = inspect_checkpoint(path)
    scan = scan_checkpoint(checkpoint, on_bytes)
    exact = tuple(t for t in scan.tensors if wanted in (t.name, f"{t.name}.{t.key}"))
    chosen = exact or tuple(t for t in scan.tensors if wanted in f"{t.name}.{t.key}")
    if wanted and not chosen:
        raise SpikeError(
            f"{path} holds no tensor with {wanted!r} in its name ({len(scan.tensors)} tensors)",
            hint=f"spike show tensor {path}, which lists them all",
        )
    return TensorTable(checkpoint, chosen, scan.unreadable)


OVERVIEW = (
    "SELECT name, count(DISTINCT rank) AS ranks, count(*) AS rows, min(step) AS first_step, max(step) AS last_step,"
    " count(*) FILTER (WHERE NOT isfinite(value)) AS non_finite, count(*) FILTER (WHERE superseded) AS superseded"
    " FROM signals GROUP BY name ORDER BY rows DESC, name"
)
"""What `spike show signals` asks where the operator asks nothing."""


def show_signals(case: Case, sql: str = "") -> Answer:
    """The answer to one SELECT over the signals of a case; without one, what signals there are.

    Raises `InputUnreadable` where the case holds no signals, `SpikeError` where the query fails.
    """
    return query_signals(case.path, sql or OVERVIEW)


def show_formats() -> tuple[Format, ...]:
    """Every format of checkpoints, metrics and hardware events, as found in the folders of readers."""
    from spike.readers import checkpoints, hardware
    from spike.readers.metrics.plugins import line_shapes, metric_readers

    found = [Format("checkpoint", r.layout, _about(r)) for r in checkpoints.readers()]
    found += [Format("metrics", r.format, _about(r)) for r in metric_readers()]
    found += [Format("metrics", s.name, _about(s)) for s in line_shapes()]
    found += [Format("hardware", r.format, _about(r)) for r in hardware.readers()]
    return tuple(found)


def _about(reader: object) -> str:
    """First line of the docstring of the reader's module: each asks the question that it answers."""
    import sys

    module = sys.modules.get(type(reader).__module__)
    return ((module.__doc__ if module else "") or "").strip().split("\n")[0]
