"""Does NVML give the same facts as `nvidia-smi -q -x`, and does what a board does not answer stay "not measured"?"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.casefile.small_runs import incident, make_run, signals

from spike.actions.evidence.freeze import freeze
from spike.casefile.manifest import read_manifest
from spike.domain.measured import NotMeasured
from spike.readers.hardware import Severity, read_hardware
from spike.readers.hardware.nvml import read_nvml

XML = """\
<?xml version="1.0" ?>
<nvidia_smi_log>
  <timestamp>Thu Jul  2 10:00:00 2026</timestamp>
  <gpu id="00000000:19:00.0">
    <ecc_errors>
      <volatile><sram_correctable>1</sram_correctable><sram_uncorrectable_parity>2</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded><dram_correctable>7</dram_correctable>
        <dram_uncorrectable>3</dram_uncorrectable></volatile>
      <aggregate><sram_correctable>1</sram_correctable><sram_uncorrectable_parity>2</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>4</sram_uncorrectable_secded><dram_correctable>7</dram_correctable>
        <dram_uncorrectable>5</dram_uncorrectable></aggregate>
    </ecc_errors>
    <remapped_rows><remapped_row_corr>1</remapped_row_corr><remapped_row_unc>2</remapped_row_unc>
      <remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <retired_pages><pending_retirement>N/A</pending_retirement></retired_pages>
    <gpu_recovery_action>GPU Reset</gpu_recovery_action>
  </gpu>
</nvidia_smi_log>
"""


@dataclass
class Board:
    """What one fake GPU answers; None: the board does not support the question."""

    bus: bytes = b"00000000:19:00.0"
    memory: dict[tuple[int, int, int], int] | None = field(
        # (kind, scope, place): corrected 0, uncorrected 1; volatile 0, aggregate 1; DRAM 2, SRAM 7
        default_factory=lambda: {
            **{(0, 0, 7): 1, (1, 0, 7): 2, (0, 0, 2): 7, (1, 0, 2): 3},
            **{(0, 1, 7): 1, (1, 1, 7): 6, (0, 1, 2): 7, (1, 1, 2): 5},
        }
    )
    sram: dict[str, int] | None = field(
        default_factory=lambda: {
            **{"volatileUncParity": 2, "volatileUncSecDed": 0},
            **{"aggregateUncParity": 2, "aggregateUncSecDed": 4},
        }
    )
    rows: tuple[int, int, int, int] | None = (1, 2, 1, 0)
    pages: int | None = None
    action: int | None = 1
    links: dict[int, dict[int, int]] = field(default_factory=dict)
    is_lost: bool = False


class NVMLError(Exception):
    """As the package raises it."""

    def __str__(self) -> str:
        return {3: "Not Supported", 15: "GPU is lost", 12: "NVML Shared Library Not Found"}[self.args[0]]


def library(*boards: Board, opens: bool = True) -> ModuleType:
    """A module with the documented functions of nvidia-ml-py, over fake boards; a handle is the board."""
    fake: Any = ModuleType("pynvml")

    def known(value: Any) -> Any:
        if value is None:
            raise NVMLError(3)
        return value

    def init() -> None:
        if not opens:
            raise NVMLError(12)

    def handle(index: int) -> Board:
        if boards[index].is_lost:
            raise NVMLError(15)
        return boards[index]

    def sram(board: Board, status: Any) -> int:
        vars(status).update(known(board.sram))
        return 0

    def fields(board: Board, _ids: list[int]) -> list[Any]:
        supported = board.action is not None
        value = SimpleNamespace(uiVal=board.action if supported else 0)
        return [SimpleNamespace(nvmlReturn=0 if supported else 3, value=value)]

    fake.NVMLError = NVMLError
    fake.NVML_SUCCESS, fake.NVML_VOLATILE_ECC, fake.NVML_AGGREGATE_ECC = 0, 0, 1
    fake.NVML_MEMORY_ERROR_TYPE_CORRECTED, fake.NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    fake.NVML_MEMORY_LOCATION_DRAM, fake.NVML_MEMORY_LOCATION_SRAM = 2, 7
    fake.NVML_NVLINK_MAX_LINKS, fake.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 36, 230
    fake.c_nvmlEccSramErrorStatus_v1_t = SimpleNamespace
    fake.nvmlInit, fake.nvmlShutdown = init, lambda: None
    fake.nvmlSystemGetDriverVersion = lambda: b"570.86.15"
    fake.nvmlDeviceGetCount = lambda: len(boards)
    fake.nvmlDeviceGetHandleByIndex = handle
    fake.nvmlDeviceGetPciInfo = lambda board: SimpleNamespace(busId=board.bus)
    fake.nvmlDeviceGetName = lambda _board: b"NVIDIA H100"
    fake.nvmlDeviceGetUUID = lambda _board: "GPU-5096"
    fake.nvmlDeviceGetMemoryErrorCounter = lambda board, kind, scope, place: known(board.memory)[kind, scope, place]
    fake.nvmlDeviceGetSramEccErrorStatus = sram
    fake.nvmlDeviceGetRemappedRows = lambda board: known(board.rows)
    fake.nvmlDeviceGetRetiredPagesPendingStatus = lambda board: known(board.pages)
    fake.nvmlDeviceGetCurrentClocksEventReasons = lambda _board: 0
    fake.nvmlDeviceGetFieldValues = fields
    fake.nvmlDeviceGetNvLinkState = lambda board, link: int(known(board.links.get(link)) is not None)
    fake.nvmlDeviceGetNvLinkErrorCounter = lambda board, link, number: board.links[link].get(number, 0)
    return fake


def facts(path: Path) -> list[tuple[str, Severity, str, str]]:
    record = read_hardware([path])
    assert record.unreadable == ()
    return [(e.kind, e.severity, e.statement, e.device) for e in record.events]


def captured(directory: Path, monkeypatch: pytest.MonkeyPatch, *boards: Board) -> Path:
    monkeypatch.setitem(sys.modules, "pynvml", library(*boards))
    found = read_nvml()
    assert not isinstance(found, NotMeasured), found
    (directory / "hardware.json").write_text(json.dumps(found))
    return directory / "hardware.json"


def test_nvml_gives_the_facts_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smi.xml").write_text(XML)
    by_library = facts(captured(tmp_path, monkeypatch, Board()))
    assert by_library == facts(tmp_path / "smi.xml")
    assert len(by_library) == 8
    assert {kind for kind, *_ in by_library} == {"ecc", "row-remap", "recovery"}


def test_errors_of_nvlinks_are_told_by_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Board(memory=None, sram=None, rows=None, action=0, links={0: {}, 4: {1: 9, 2: 3}})
    assert [(kind, severity, text) for kind, severity, text, _ in facts(captured(tmp_path, monkeypatch, quiet))] == [
        ("nvlink", Severity.NOTE, "9 recovery errors of NVLink 4 since its counters were reset on 00000000:19:00.0"),
        ("nvlink", Severity.NOTE, "3 CRC flit errors of NVLink 4 since its counters were reset on 00000000:19:00.0"),
    ]


def test_what_a_board_does_not_answer_is_not_measured_and_never_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = captured(tmp_path, monkeypatch, Board(memory=None, sram=None, rows=None, action=None))
    (gpu,) = json.loads(path.read_text())["gpus"]
    assert gpu["ecc"] == {"volatile": {}, "aggregate": {}}
    assert gpu["remapped_rows"] is gpu["recovery_action"] is gpu["pages_pending"] is None
    assert gpu["not_measured"]["recovery_action"] == "Not Supported"
    assert len([name for name in gpu["not_measured"] if name.startswith("ecc.")]) == 10
    assert facts(path) == []


def test_a_lost_gpu_is_named_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = captured(tmp_path, monkeypatch, Board(is_lost=True), Board())
    first, second = json.loads(path.read_text())["gpus"]
    assert (first["device"], first["not_measured"]) == ("GPU 0", {"handle": "GPU is lost"})
    assert second["ecc"]["volatile"]["dram_uncorrectable"] == 3


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "not installed"),
        (ModuleType("pynvml"), "not the one of nvidia-ml-py"),
        (library(opens=False), "Shared Library Not Found"),
        (library(), "no GPU"),
    ],
)
def test_without_a_library_or_a_gpu_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    found = read_nvml()
    assert isinstance(found, NotMeasured)
    assert reason in found.not_measured


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "spike.hardware/2", "gpus": []}',
        '{"schema": "spike.hardware/1", "time": 1, "gpus": [{}]}',
        '{"schema": "spike.hardware/1", "gpus": []}',
        '{"schema": "spike.hardware/1", "time": 1, "gpus": 7}',
        '{"schema": "spike.hardware/1", "time": 1, "gpus": [{"device": "x", "ecc": []}]}',
        '{"schema": "spike.hardware/1", "time"',
        '{"schema": "spike.hardware/1", "x": ' + "[" * 100_000,
    ],
)
def test_a_damaged_capture_is_unreadable_and_never_clean(tmp_path: Path, text: str) -> None:
    (tmp_path / "hardware.json").write_text(text)
    record = read_hardware([tmp_path / "hardware.json"])
    assert (record.files, len(record.unreadable)) == ((), 1)


def test_a_freeze_on_a_gpu_node_keeps_the_counters_and_check_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spike.actions.checks.check import check_case

    monkeypatch.setitem(sys.modules, "pynvml", library(Board()))
    run = replace(make_run(tmp_path / "run"), launch="./train.sh")
    case = freeze(run, incident(), cases=tmp_path / "cases", operator="ada", signals=signals())
    manifest = read_manifest(case.path)
    assert manifest is not None
    assert {e.role for e in manifest.entries if e.path == "hardware.json"} == {"hardware"}
    fact = check_case(case, run).fact("hardware.events")
    assert fact is not None
    assert fact.value == "yes"
    assert "first 3 dram uncorrectable ECC errors since the driver was loaded" in fact.statement
    assert "a counter" in fact.statement


def test_a_freeze_without_a_gpu_keeps_no_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    run = replace(make_run(tmp_path / "run"), launch="./train.sh")
    case = freeze(run, incident(), cases=tmp_path / "cases", operator="ada", signals=signals())
    assert not list((case.path / "evidence").glob("*hardware*"))


def test_without_the_library_the_output_of_nvidia_smi_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n[ \"$1\" = -q ] || exit 6\ncat <<'END'\n{XML}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    run = replace(make_run(tmp_path / "run"), launch="./train.sh")
    case = freeze(run, incident(), cases=tmp_path / "cases", operator="ada", signals=signals())
    assert len(facts(case.path / "evidence" / "nvidia-smi.xml")) == 8
