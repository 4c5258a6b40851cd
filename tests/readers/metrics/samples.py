"""Which file does each metric format and line shape look like? Samples written by hand, one a plug-in."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from spike.readers.metrics.crc32c import masked

LOSSES = (4.5, 4.25, 4.125, float("nan"), 3.5)
"""What every sample of a format holds at steps 1 to 5."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def record(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", masked(head)) + payload + struct.pack("<I", masked(payload))


def event(step: int, tag: str, value: float) -> bytes:
    scalar = field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)
    return record(
        varint(1 << 3 | 1) + struct.pack("<d", 1.0) + varint(2 << 3) + varint(step) + field(5, field(1, scalar))
    )


def tensorboard(directory: Path) -> Path:
    path = directory / "events.out.tfevents.1700000000.host.1.0"
    first = record(varint(1 << 3 | 1) + struct.pack("<d", 1.0) + field(3, b"brain.Event:2"))
    path.write_bytes(first + b"".join(event(step, "train/loss", loss) for step, loss in enumerate(LOSSES, 1)))
    return path


def wandb_fragment(kind: int, body: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(body, zlib.crc32(bytes([kind]))), len(body), kind) + body


def wandb_row(step: int, loss: float) -> bytes:
    items = (("_step", step), ("train/loss", loss))
    history = b"".join(field(1, field(1, k.encode()) + field(16, json.dumps(v).encode())) for k, v in items)
    return field(2, history)


def wandb(directory: Path) -> Path:
    path = directory / "run-abc.wandb"
    rows = b"".join(wandb_fragment(1, wandb_row(step, loss)) for step, loss in enumerate(LOSSES, 1))
    path.write_bytes(b":W&B\xe1\xbe\x00" + rows)
    return path


def mlflow_sqlite(directory: Path) -> Path:
    path = directory / "mlflow.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE metrics"
            " (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan INTEGER)"
        )
        for step, loss in enumerate(LOSSES, 1):
            is_nan = loss != loss
            row = ("train/loss", 0.0 if is_nan else loss, 1000 + step, "run", step, int(is_nan))
            connection.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()
    return path


def mlflow_files(directory: Path) -> Path:
    path = directory / "metrics" / "train" / "loss"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{1700000000000 + step} {loss} {step}\n" for step, loss in enumerate(LOSSES, 1)))
    return path


def trainer_state(directory: Path) -> Path:
    path = directory / "trainer_state.json"
    rows = [{"step": step, "loss": loss, "epoch": step / 5} for step, loss in enumerate(LOSSES, 1)]
    closing = {"step": 5, "train_loss": 4.0, "train_runtime": 1.0, "total_flos": 1.0}
    path.write_text(json.dumps({"global_step": 5, "log_history": [*rows, closing]}))
    return path


def jsonl(directory: Path) -> Path:
    path = directory / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": s, "loss": v}) + "\n" for s, v in enumerate(LOSSES, 1)))
    return path


def trace(directory: Path) -> Path:
    path = directory / "rank00000.jsonl"
    start = {"t": "start", "schema": "spike.trace/1", "rank": 0, "world": 1}
    rows = [
        {"t": "step", "step": s, "loss": v if v == v else "NaN", "lr": [0.1], "applied": True}
        for s, v in enumerate(LOSSES, 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in (start, *rows)))
    return path


def torchtitan_record(kind: str, **more: object) -> str:
    row: dict[str, object] = {"delta_ms": 0.1, "rank": 0, "global_rank": 0, "source": "training", "pid": 7}
    row |= {"time_us": 1709500000123456, "log_type": "event", "log_type_name": kind, "event_name": None}
    return json.dumps(row | more | {"caller": "trainer.py:796:train_step", "seq_id": 1, "message": ""}) + "\n"


def torchtitan_events(directory: Path) -> Path:
    path = directory / "training.global_rank_0.20260101-000000-ABC123.jsonl"
    lines = [torchtitan_record("training_start", log_type="instant"), torchtitan_record("setup_end", value=9.0)]
    for step, loss in enumerate(LOSSES, 1):
        lines.append(torchtitan_record("fwd_bwd_start", step=step))
        lines.append(torchtitan_record("fwd_bwd_end", step=step, value=12.5))
        lines.append(torchtitan_record("metric_value", step=step, value=loss, event_name="train.loss"))
    path.write_text("".join(lines))
    return path


def table(directory: Path) -> Path:
    path = directory / "metrics.csv"
    path.write_text("epoch,step,train_loss\n" + "".join(f"0,{s},{v}\n" for s, v in enumerate(LOSSES, 1)))
    return path


def console(directory: Path) -> Path:
    path = directory / "train.log"
    path.write_text("loading the data\n" + "".join(f"step {s} | loss {v} | 12 ms\n" for s, v in enumerate(LOSSES, 1)))
    return path


FORMATS: dict[str, Callable[[Path], Path]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow-sqlite": mlflow_sqlite,
    "mlflow-files": mlflow_files,
    "hf-trainer-state": trainer_state,
    "spike-trace": trace,
    "torchtitan-events": torchtitan_events,
    "jsonl": jsonl,
    "csv": table,
    "console": console,
}

SHAPES: dict[str, tuple[str, dict[str, list[float]], int]] = {
    "megatron": (
        " [2026-08-22 10:00:00.1] iteration        5/     100 | consumed samples:  160 | elapsed time per"
        " iteration (ms): 123.4 | learning rate: 1.000000E-04 | lm loss: 7.334521E-01 | loss scale: 1.0 |"
        " grad norm: 0.752 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
        {"loss": [0.7334521], "lr": [1e-4], "grad_norm": [0.752], "loss_scale": [1.0], "skipped": [0.0]},
        5,
    ),
    "hf-dict": (
        "  5%|5 | 1/20 [00:01<00:20]\r{'loss': '4.16', 'grad_norm': '1.569', 'learning_rate': '5e-05',"
        " 'epoch': '0.03'}\n",
        {"loss": [4.16], "grad_norm": [1.569], "lr": [5e-5]},
        1,
    ),
    "deepspeed": (
        "[ts] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss"
        " scale: 65536, reducing to 32768\nstep:7, loss:2.5\n",
        {"loss": [2.5], "skipped": [1.0], "loss_scale": [32768.0]},
        7,
    ),
    "olmo-core": (
        "2026-01-01T00:00:00\thost:0\ttrain:12\tINFO\t[step=10/100,epoch=1,eta=1h]\n    train/CE loss=2.345\n"
        "    optim/total grad norm=0.5123\n    optim/LR (group 0)=4.000E-04\n",
        {"loss": [2.345], "grad_norm": [0.5123], "lr": [4e-4]},
        10,
    ),
    "embedded-json": (
        '2022-01-01 | INFO | train_inner | {"epoch": 1, "loss": "3.269", "gnorm": "0.4", "num_updates": "46002"}\n',
        {"loss": [3.269], "grad_norm": [0.4]},
        46002,
    ),
    "key-value": (
        "\x1b[31m[rank0]:[titan] 2026-08-21 10:00:00,123 - root - INFO - step:  3  loss:  8.12345  grad_norm:  1.2345"
        "  memory:  1.23GiB(4.56%)  tps: 27,483\x1b[0m\n",
        {"loss": [8.12345], "grad_norm": [1.2345], "throughput": [27483.0]},
        3,
    ),
}
