"""What is fuzzed? Every reader of binary or structured files that somebody else wrote, with small honest seeds.

A reader may read, or refuse with `InputUnreadable` or another `SpikeError`. Any other exception, a crash, a hang, or
more memory than the driver allows is a finding. `make fuzz` runs `fuzz_*.py` (coverage-guided, `-max_total_time=60`
each); `tests/test_fuzz_targets.py` feeds every target damaged seeds in each run of the tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spike.domain.errors import SpikeError


@dataclass(frozen=True)
class Target:
    """One reader."""

    seeds: Callable[[Path], list[bytes]]
    """Honest files, made in an empty directory."""
    feed: Callable[[bytes, Path], None]
    """Hand the bytes to the reader as a file below the directory; raises whatever is not allowed."""


def _feed_checkpoint(name: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, place: Path) -> None:
        from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint

        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        with contextlib.suppress(SpikeError):
            scan_checkpoint(inspect_checkpoint(path if path.parent == place else path.parent))

    return feed


def _feed_metrics(name: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, place: Path) -> None:
        from spike.readers.metrics import read_signals

        (place / name).write_bytes(data)
        with contextlib.suppress(SpikeError):
            read_signals([place / name], base=place)

    return feed


def _feed_hardware(name: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, place: Path) -> None:
        from spike.readers.hardware import read_hardware

        (place / name).write_bytes(data)
        with contextlib.suppress(SpikeError):
            read_hardware([place / name])

    return feed


def _feed_pickle(data: bytes, _place: Path) -> None:
    from spike.readers.pickles import read_pickle

    with contextlib.suppress(SpikeError):
        read_pickle(data)


def _feed_trace(data: bytes, place: Path) -> None:
    from spike.lab.traces import read_trace

    (place / "rank00000.jsonl").write_bytes(data)
    with contextlib.suppress(SpikeError):
        read_trace(place / "rank00000.jsonl")


def _feed_case(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, place: Path) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        with contextlib.suppress(SpikeError):
            read(place)

    return feed


def _read_signals(case: Path) -> object:
    from spike.casefile.signals_store import read_signals

    return read_signals(case)


def _read_manifest(case: Path) -> object:
    from spike.casefile.manifest import read_manifest

    return read_manifest(case)


def _read_journal(case: Path) -> object:
    from spike.casefile.journal import read_journal, verify_chain

    verify_chain(case)
    return read_journal(case)


def _read_case(case: Path) -> object:
    from spike.casefile.case import open_case

    return open_case(case)


def _read_signature(case: Path) -> object:
    from spike.casefile.signing import signed_key_ids

    return signed_key_ids(case)


def _read_run(directory: Path) -> object:
    from spike.readers.run_file import load_run

    return load_run(directory)


def _torch_zip(place: Path) -> list[bytes]:
    import torch

    state = {"model": {"w": torch.arange(6.0), "b": torch.zeros(2, dtype=torch.bfloat16)}, "step": 7}
    torch.save(state, place / "a.pt")
    torch.save(state, place / "b.pt", _use_new_zipfile_serialization=False)
    return [(place / "a.pt").read_bytes(), (place / "b.pt").read_bytes()]


def _safetensors(_place: Path) -> list[bytes]:
    header = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}
    text = json.dumps(header).encode()
    return [struct.pack("<Q", len(text)) + text + struct.pack("<2f", 1.0, 2.0), struct.pack("<Q", 2) + b"{}"]


def _dcp(place: Path) -> list[bytes]:
    import torch
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is only one process
        dcp.save({"w": torch.arange(6.0), "step": 7}, checkpoint_id=place / "dcp", no_dist=True)
    return [(place / "dcp/.metadata").read_bytes()]


def _pickles(_place: Path) -> list[bytes]:
    value = {"a": [1, 2.5, "x", None, b"y"], "b": (True, {3}), "c": 10**30}
    return [pickle.dumps(value, protocol) for protocol in range(6)]


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _tensorboard(_place: Path) -> list[bytes]:
    from spike.readers.metrics.crc32c import masked

    def record(payload: bytes) -> bytes:
        head = struct.pack("<Q", len(payload))
        return head + struct.pack("<I", masked(head)) + payload + struct.pack("<I", masked(payload))

    scalar = _field(1, b"train/loss") + _varint(2 << 3 | 5) + struct.pack("<f", 2.5)
    row = b"\x09" + struct.pack("<d", 1.0) + b"\x10" + _varint(7) + _field(5, _field(1, scalar))
    return [record(b"\x09" + struct.pack("<d", 1.0) + _field(3, b"brain.Event:2")) + record(row) * 3]


def _wandb(_place: Path) -> list[bytes]:
    def fragment(body: bytes) -> bytes:
        return struct.pack("<IHB", zlib.crc32(body, zlib.crc32(b"\x01")), len(body), 1) + body

    items = _field(1, _field(1, b"_step") + _field(16, b"3")) + _field(1, _field(1, b"loss") + _field(16, b"2.5"))
    return [b":W&B\xe1\xbe\x00" + fragment(_field(2, items)) * 3]


def _flight_recorder(_place: Path) -> list[bytes]:
    entry = {
        **{"record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "op_id": 1},
        **{"profiling_name": "nccl:all_reduce", "state": "completed", "input_sizes": ((4,),), "is_p2p": False},
    }
    dump: dict[str, Any] = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "pg_status": {}}
    dump |= {"entries": [entry, {**entry, "state": "scheduled", "collective_seq_id": 2}]}
    return [pickle.dumps(dump, 2), json.dumps(dump).encode()]


def _signals(place: Path) -> list[bytes]:
    import numpy as np

    from spike.casefile.signals_store import SIGNALS_NAME, write_signals
    from spike.domain.signals import Series, Signals, Source

    (place / SIGNALS_NAME).parent.mkdir(parents=True, exist_ok=True)
    steps = np.arange(1, 5)
    series = Series("loss", steps, np.array([1.0, 2.0, np.nan, 3.0]), None, "log.jsonl", "loss", 3)
    write_signals(place, Signals((series,), (Source("log.jsonl", "jsonl", 4, 1, 4),)))
    return [(place / SIGNALS_NAME).read_bytes()]


def _small_case(place: Path, name: str) -> bytes:
    from spike.casefile.case import create_case
    from spike.casefile.manifest import EVIDENCE, take_stock, write_manifest
    from spike.domain.case import CaseFacts
    from spike.domain.run import Run

    facts = CaseFacts("one", "2026-08-01T03:12:45Z", "ada", "0.1.0", Run(directory="/run"), None, None)
    case = create_case(place / "cases", facts)
    (case.path / EVIDENCE / "run").mkdir(parents=True)
    (case.path / EVIDENCE / "run/cfg.yaml").write_text("lr: 1\n")
    case.record("freeze", "done", 0, write_manifest(case.path, take_stock(case.path / EVIDENCE)))
    return (case.path / name).read_bytes()


def _of_case(name: str) -> Callable[[Path], list[bytes]]:
    return lambda place: [_small_case(place, name)]


def _trace(_place: Path) -> list[bytes]:
    start = {
        "t": "start",
        "schema": "spike.trace/1",
        "rank": 0,
        "world": 1,
        "packages": {"torch": "2"},
        "first_step": 0,
    }
    tensor = {"role": "parameter", "name": "w", "index": 0, "dtype": "float32", "shape": [2], "digest": "0", "l2": 1.0}
    step = {
        "t": "step",
        "step": 1,
        "micro": [{"loss": "NaN", "batch": "x"}],
        "loss": "NaN",
        "lr": [0.1],
        "applied": True,
    }
    lines = [start, step, {"t": "fingerprint", "step": 1, "tensors": [tensor]}, {"t": "end", "reason": "exited"}]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


def _zip_of_zips(place: Path) -> list[bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
        archive.writestr("archive/data/0", b"\0" * 64)
    return [*_torch_zip(place), buffer.getvalue()]


_XML = b'<?xml version="1.0" ?><nvidia_smi_log><gpu id="0"><ecc_errors/></gpu></nvidia_smi_log>'
_NVML = b'{"schema": "spike.hardware/1", "time": 1.5, "gpus": [{"device": "0", "ecc": {"volatile": {"a": 1}}}]}'
_RUN = b"launch: python train.py --resume {checkpoint}\nmetrics: [log.jsonl]\nlimits: {repeats: 2}\nenv: {A: b}\n"
_DSSE = (
    b'{"payloadType": "application/vnd.in-toto+json", "payload": "e30=", "signatures": [{"keyid": "a", "sig": "Yg=="}]}'
)

TARGETS = {
    "torch_zip": Target(_zip_of_zips, _feed_checkpoint("step-7.pt")),
    "safetensors": Target(_safetensors, _feed_checkpoint("model.safetensors")),
    "dcp": Target(_dcp, _feed_checkpoint("step-7/.metadata")),
    "pickle": Target(_pickles, _feed_pickle),
    "tensorboard": Target(_tensorboard, _feed_metrics("events.out.tfevents.1700000000.host.1.0")),
    "wandb": Target(_wandb, _feed_metrics("run-abc.wandb")),
    "flight_recorder": Target(_flight_recorder, _feed_hardware("nccl_trace_rank_0")),
    "signals": Target(_signals, _feed_case("evidence/signals.parquet", _read_signals)),
    "manifest": Target(_of_case("evidence/manifest.json"), _feed_case("evidence/manifest.json", _read_manifest)),
    "journal": Target(_of_case("journal.jsonl"), _feed_case("journal.jsonl", _read_journal)),
    "case": Target(_of_case("case.yaml"), _feed_case("case.yaml", _read_case)),
    "signature": Target(lambda _place: [_DSSE], _feed_case("evidence/manifest.dsse.json", _read_signature)),
    "trace": Target(_trace, _feed_trace),
    "hardware": Target(lambda _place: [_XML, _NVML], _feed_hardware("nvidia-smi.xml")),
    "run_file": Target(lambda _place: [_RUN], _feed_case("spike.yaml", _read_run)),
}


def emptied(place: Path) -> Path:
    """The same directory without anything in it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
