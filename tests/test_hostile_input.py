"""Does anything that a hostile file, name or repository brings along ever run, show, hide or fill the memory?

Every case is counted; the summary of an area asserts how many there were and that none got through.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from spike.domain.checkpoint import Integrity
from spike.domain.errors import InputUnreadable
from spike.readers.checkpoints import inspect_checkpoint, scan_checkpoint
from tests.casefile.small_runs import git, write_checkpoint
from tests.crash.world import describe, write_run

ROOT = Path(__file__).resolve().parents[1]


# -- archives --------------------------------------------------------------------------------------------------


def saved() -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": {"w": torch.arange(64.0), "b": torch.ones(16)}, "step": 3}, buffer)
    return buffer.getvalue()


def entries(data: bytes, signature: bytes) -> list[int]:
    """Offsets of every header with this signature."""
    return [at for at in range(len(data)) if data[at : at + 4] == signature]


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    return data[:at] + struct.pack(form, *values) + data[at + struct.calcsize(form) :]


def again(data: bytes, change: Callable[[zipfile.ZipInfo, bytes], tuple[str, bytes, int]]) -> bytes:
    """The same archive, written anew with every member changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            name, body, method = change(info, old.read(info))
            new.writestr(zipfile.ZipInfo(name), body, method)
    return buffer.getvalue()


def bomb(data: bytes) -> bytes:
    zeros = b"\0" * (64 << 20)
    return again(data, lambda i, b: (i.filename, zeros if "/data/0" in i.filename else b, zipfile.ZIP_DEFLATED))


def duplicated(data: bytes) -> bytes:
    buffer = io.BytesIO(data)
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(buffer, "a") as archive,
        pytest.warns(match="Duplicate"),
    ):
        archive.writestr(old.namelist()[-1], b"\0" * 4)
    return buffer.getvalue()


def overlapping(data: bytes) -> bytes:
    """Two names for one place: the second entry of the directory points to the member of the first."""
    first, second = entries(data, b"PK\1\2")[:2]
    return patched(data, second + 42, "<I", struct.unpack_from("<I", data, first + 42)[0])


def flag(bit: int, *, local: bool, central: bool) -> Callable[[bytes], bytes]:
    def act(data: bytes) -> bytes:
        for signature, offset, wanted in ((b"PK\3\4", 6, local), (b"PK\1\2", 8, central)):
            for at in entries(data, signature) if wanted else ():
                data = patched(data, at + offset, "<H", struct.unpack_from("<H", data, at + offset)[0] | bit)
        return data

    return act


def renamed_locally(data: bytes) -> bytes:
    at = next(e for e in entries(data, b"PK\3\4") if b"data.pkl" in data[e + 30 : e + 60])
    return data[: at + 30] + data[at + 30 :].replace(b"data.pkl", b"evil.pkl", 1)


def central(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    def act(data: bytes) -> bytes:
        at = next(e for e in entries(data, b"PK\1\2") if b"/data/0" in data[e + 46 : e + 80])
        return patched(data, at + offset, form, value)

    return act


def end_record(offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    return lambda data: patched(data, data.rfind(b"PK\5\6") + offset, form, value)


def flipped(place: bytes) -> Callable[[bytes], bytes]:
    def act(data: bytes) -> bytes:
        at = data.find(struct.pack("<2f", 1.0, 2.0)) if place == b"tensor" else data.find(b"ctorch")
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return act


ARCHIVES: dict[str, Callable[[bytes], bytes]] = {
    "a deflated bomb": bomb,
    "every member deflated": lambda data: again(data, lambda i, b: (i.filename, b, zipfile.ZIP_DEFLATED)),
    "every member with bzip2": lambda data: again(data, lambda i, b: (i.filename, b, zipfile.ZIP_BZIP2)),
    "a member twice": duplicated,
    "members that overlap": overlapping,
    "a flipped bit in a tensor": flipped(b"tensor"),
    "a flipped bit in the pickle": flipped(b"pickle"),
    "encrypted, says the directory": flag(1, local=False, central=True),
    "encrypted, says the member": flag(1, local=True, central=False),
    "encrypted, say both": flag(1, local=True, central=True),
    "another name at the member": renamed_locally,
    "a size beyond the file": central(24, "<I", 0x7FFFFFFF),
    "a compressed size beyond the file": central(20, "<I", 0x7FFFFFFF),
    "a size that asks for zip64": central(24, "<I", 0xFFFFFFFF),
    "an offset that asks for zip64": central(42, "<I", 0xFFFFFFFF),
    "an offset into another member": central(42, "<I", 5),
    "a wrong checksum in the directory": central(16, "<I", 0xDEADBEEF),
    "an unknown compression": central(10, "<H", 99),
    "more members than there are": end_record(10, "<H", 60000),
    "fewer members than there are": end_record(10, "<H", 1),
    "a directory beyond the file": end_record(16, "<I", 0x7FFFFFFF),
    "a directory of another size": end_record(12, "<I", 7),
    "no end": lambda data: data[:-30],
    "bytes before": lambda data: b"#!/bin/sh\n" + data,
    "a member that leads out": lambda data: again(
        data, lambda i, b: (i.filename.replace("data.pkl", "../../data.pkl"), b, zipfile.ZIP_STORED)
    ),
}


def test_no_archive_that_a_loader_could_be_fooled_by_is_called_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = saved()
    (tmp_path / "step-3.pt").write_bytes(honest)
    assert inspect_checkpoint(tmp_path / "step-3.pt").integrity is Integrity.COMPLETE  # the control
    misses = []
    for name, change in ARCHIVES.items():
        data = change(honest)
        assert data != honest, name
        (tmp_path / "step-3.pt").write_bytes(data)
        began = time.process_time()
        try:
            found = inspect_checkpoint(tmp_path / "step-3.pt")
            if found.integrity is Integrity.COMPLETE and not scan_checkpoint(found).unreadable:
                misses.append(name)
        except InputUnreadable:  # not even a checkpoint: refused
            pass
        assert time.process_time() - began < 5, name
    with capsys.disabled():
        print(f"\narchives: tried {len(ARCHIVES)}, misses {misses}")
    assert misses == []
    assert len(ARCHIVES) == 25


# -- bombs: bounded memory and time, in a child that may not have more ------------------------------------------

BOMBS = {
    "a header of spaces": ("model.safetensors", "struct.pack('<Q', 99_000_000) + b'{}' + b' ' * 98_999_998"),
    "a header of 2**63 bytes": ("model.safetensors", "struct.pack('<Q', 1 << 63) + b'{}'"),
    "a deep header": ("model.safetensors", "(lambda t: struct.pack('<Q', len(t)) + t)(b'{\"a\":' * 3_000_000)"),
    "a deflated quarter of a gigabyte": ("step-1.pt", "deflated(256 << 20)"),
    "a pickle of a long integer": ("step-1.pt", "b'\\x80\\x02\\x8b' + struct.pack('<I', 0x7FFFFFFF) + b'\\x00'"),
    "a pickle of two gigabytes of bytes": ("step-1.pt", "b'\\x80\\x04B' + struct.pack('<I', 0x7FFFFFFF) + b'x'"),
    "a memo bomb": ("step-1.pt", "b'\\x80\\x02]' + b'(' * 50 + b''.join(b'q%c2' % (i % 256) for i in range(900_000))"),
    "aliases in spike.yaml": ("spike.yaml", "aliases()"),
    "aliases in a case": ("case.yaml", "aliases()"),
    "entities in XML": ("nvidia-smi.xml", "b'<!DOCTYPE x [<!ENTITY a \"' + b'b' * 9999 + b'\">]><nvidia_smi_log/>'"),
    "one JSON line of 100 MB": ("log.jsonl", "b'[' * 100_000_000"),
}
CHILD = """
import io, resource, struct, sys, time, zipfile
from pathlib import Path
place, name, expression, limit_mb = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
def deflated(size):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data.pkl", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return buffer.getvalue()
def aliases():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    return "\\n".join([*rows, "launch: *a11", "schema: *a11"]).encode()
(place / name).write_bytes(eval(expression))
from spike.casefile.case import open_case
from spike.domain.errors import SpikeError
from spike.readers.checkpoints import inspect_checkpoint, readers, scan_checkpoint
from spike.readers.hardware import read_hardware
from spike.readers.metrics import read_signals
from spike.readers.run_file import load_run
readers()
import duckdb, yaml  # what is imported late is no part of the file's bill
def used():
    rows = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Vm"))
    return int(rows["VmSize"].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used() + (limit_mb << 20),) * 2)
began = time.process_time()
try:
    if name.endswith("yaml"):
        load_run(place) if name == "spike.yaml" else open_case(place)
    elif name.endswith("xml"):
        assert read_hardware([place / name]).unreadable
    elif name.endswith("jsonl"):
        read_signals([place / name], base=place)
    else:
        found = inspect_checkpoint(place / name)
        assert found.integrity.value != "complete", found
        scan_checkpoint(found)
except SpikeError:
    pass
print("BOUNDED", round(time.process_time() - began, 2))
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_little_memory_and_time(name: str, tmp_path: Path) -> None:
    file, expression = BOMBS[name]
    done = subprocess.run(
        (sys.executable, "-c", CHILD, str(tmp_path), file, expression, "300"),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        timeout=120,
    )
    assert "BOUNDED" in done.stdout, done.stderr[-1500:]
    assert float(done.stdout.split("BOUNDED")[1]) < 20


def test_the_bombs_are_counted() -> None:
    assert len(BOMBS) == 11


# -- what is never imported, and names that would act -------------------------------------------------------------

NEVER = """
import sys
from spike.cli.app import app
def run(*words):
    try:
        app(list(words), standalone_mode=False)
    except SystemExit as ended:
        assert ended.code in (0, 1, None), (words, ended.code)
for words in (("detect",), ("freeze",), ("check",), ("verify",), ("status",)):
    run(*words)
    assert "torch" not in sys.modules, words
print("NEVER IMPORTED")
"""


@dataclass
class Touch:
    """Makes a file when it is unpickled by a loader that runs what it is told."""

    marker: str

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.system, (f"touch {self.marker}",)


ESCAPE = "\x1b[2J\x1b]0;owned\x07"
_ACTS_IN_HTML = re.compile(r"<script>alert|(?:href|src)=.javascript:")
SCRIPT = "<script>alert(1)</script>"


def hostile_run(directory: Path, marker: Path) -> None:
    """Everything that can carry a name or a program carries a hostile one."""
    write_run(directory, (100, 150, 200, 250))
    evil = {"w": torch.ones(8), f"{ESCAPE}{SCRIPT}[x](javascript:alert(1))": torch.full((8,), float("nan"))}
    from safetensors.torch import save_file

    save_file(evil, directory / "out/step-200/model.safetensors")
    torch.save({"model": {"w": torch.ones(4)}, "x": Touch(str(marker))}, directory / "out/step-150/extra.pt")
    (directory / "out/step-150/.metadata").write_bytes(pickle.dumps(Touch(str(marker))))
    (directory / "nccl_trace_rank_0").write_bytes(pickle.dumps(Touch(str(marker))))
    (directory / f"{ESCAPE}{SCRIPT.replace('/', '')}.log").write_text(f"{ESCAPE}{SCRIPT} step 3 loss 2.5\n" * 4)
    (directory / "train.log").write_text(f"resuming from checkpoint 218 {ESCAPE}{SCRIPT}\nstep 221\n" * 2)
    (directory / "sitecustomize.py").write_text(f"open({str(marker)!r}, 'w')\n")
    (directory / "torch.py").write_text(f"open({str(marker)!r}, 'w')\n")
    git(directory, "init", "-q", "-b", SCRIPT.replace("(", "").replace(")", ""))
    git(directory, "add", "train.py", "cfg.yaml")
    git(directory, "commit", "-qm", f"{ESCAPE}{SCRIPT} [x](javascript:alert(1))")
    git(directory, "config", "core.fsmonitor", f"touch {marker}")
    (directory / "train.py").write_text("print('changed')\n")
    describe(directory)
    with (directory / "spike.yaml").open("a") as file:
        file.write("hardware: [nccl_trace_rank_0]\n")


def test_a_hostile_run_goes_through_the_runbook_and_nothing_of_it_acts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "ran"
    run = tmp_path / "run"
    hostile_run(run, marker)
    told = []
    for words in (("detect",), ("freeze",), ("check",), ("status",), ("verify",), ("report",), ("init", "--force")):
        command = [sys.executable, "-P", "-m", "spike.cli.app", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=run, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode in (0, 1), (words, done.stderr)
        told.append(done.stdout + done.stderr)
    case = next(path for path in run.with_name("run.spike").iterdir() if path.is_dir())
    pages = [(case / name).read_text() for name in ("postmortem.md", "postmortem.html")]
    pages += [path.read_text() for path in (case / "figures").glob("*.svg")]
    shown = [*told, *pages]
    acting = re.compile(r"<script>alert|(?<!\\)\]\(javascript:|href=.javascript:")
    misses = [text[max(0, text.find("\x1b") - 80) :][:200] for text in shown if "\x1b" in text]
    prose = re.sub(r"`[^`\n]*`", "", pages[0])  # what stands between backticks is shown as it is
    misses += [prose[found.start() - 80 :][:200] for found in acting.finditer(prose)]
    misses += [text[found.start() - 80 :][:200] for text in pages[1:] if (found := _ACTS_IN_HTML.search(text))]
    with capsys.disabled():
        print(f"\nhostile names: {len(shown)} texts searched, misses {len(misses)}; marker there: {marker.exists()}")
    assert misses == []
    assert not marker.exists()
    assert len(shown) >= 9


def test_torch_is_never_imported_by_what_only_reads_and_keeps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, (100, 200))
    torch.save({"model": {"w": torch.ones(4)}, "step": 150}, run / "out" / "step-150.pt")
    write_checkpoint(run / "out" / "step-250" / "model.safetensors", 1)
    describe(run)
    done = subprocess.run(
        (sys.executable, "-P", "-c", NEVER),
        cwd=run,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    assert "NEVER IMPORTED" in done.stdout, done.stderr[-2000:]


def test_the_control_a_loader_that_runs_pickles_does_make_the_marker(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Touch(str(tmp_path / "ran"))))
    assert (tmp_path / "ran").exists()
    assert json.dumps(SCRIPT)
