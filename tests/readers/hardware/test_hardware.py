"""Are machine records read, explained and dated, and is a broken one never taken for a clean one?"""

import importlib
import json
import os
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spike.domain.errors import SpikeError
from spike.readers import hardware
from spike.readers.hardware import Severity, find_hardware_files, read_hardware
from spike.readers.hardware.flight_recorder import read_dump

REAL = Path(__file__).resolve().parents[4] / "shared" / "real-runs"

DMESG = """\
[    0.000000] Linux version 5.15
[Sun Feb 23 16:24:18 2025] NVRM: GPU at PCI:0000:65:00: GPU-509665ad-b600-ac93-3616-d754b23d636d
[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:65:00): 94, pid=7194, Contained: CE User Channel (0x9). RST: No
[Sun Feb 23 16:24:19 2025] NVRM: Xid (PCI:0000:65:00 GPU-I:05): 31, pid='N/A', name=python, MMU Fault
[   99.500000] NVRM: Xid (0000:03:00): 14, Channel 00000001
2025-02-23T16:24:20,123456+00:00 nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 error
2025-02-23T16:24:21,000000+00:00 nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12
Feb 23 16:24:22 node7 kernel: NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.
[Sun Feb 23 16:24:23 2025] mce: [Hardware Error]: Machine check events logged
[Sun Feb 23 16:24:24 2025] Out of memory: Killed process 4242 (python)
[Sun Feb 23 16:24:25 2025] mlx5_core 0000:a1:00.0: Port 1 Link down
[Sun Feb 23 16:24:26 2025] nothing of interest
"""


@pytest.fixture
def real():
    if not REAL.is_dir():
        pytest.skip("the real runs are not beside this checkout")
    return REAL


def read(path, content):
    path.write_text(content) if isinstance(content, str) else path.write_bytes(content)
    return read_hardware([path])


# -- kernel logs ---


def test_every_form_of_a_kernel_line_is_read_with_its_meaning(tmp_path):
    record = read(tmp_path / "dmesg.txt", DMESG)
    assert record.files == ((str(tmp_path / "dmesg.txt"), "dmesg", 9),)
    found = {(e.kind, e.code): e for e in record.events}
    assert found["xid", 94].severity is Severity.FAULT
    assert "uncorrectable" in found["xid", 94].statement
    assert (found["xid", 94].device, found["xid", 94].line) == ("0000:65:00", 3)
    assert found["xid", 31].severity is Severity.APPLICATION
    assert found["xid", 14].severity is Severity.UNCLEAR
    assert found["xid", 14].time is None
    assert found["xid", 79].severity is Severity.FAULT
    assert found["sxid", 12028].severity is Severity.UNCLEAR
    assert found["sxid", 23001].severity is Severity.FAULT
    assert found["sxid", 23001].time == 1740327861.0
    assert {e.kind for e in record.events} == {"xid", "sxid", "machine-check", "memory", "network"}


def test_events_come_in_the_order_of_their_times_and_undated_ones_last(tmp_path):
    record = read(tmp_path / "dmesg.txt", DMESG)
    times = [e.time for e in record.events]
    dated = [t for t in times if t is not None]
    assert times == [*sorted(dated), *[None] * (len(times) - len(dated))]


def test_a_real_log_of_a_dying_gpu_is_read(real):
    record = read_hardware(find_hardware_files(real / "dmesg-xid"))
    assert [e.code for e in record.events] == [119] * 5
    assert all(e.severity is Severity.FAULT and e.device == "0000:9b:00" for e in record.events)
    assert [e.line for e in record.events] == [3, 38, 40, 42, 43]


# -- nvidia-smi ---

SMI = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Thu Jul  2 10:00:00 2026</timestamp>
  <gpu id="00000000:19:00.0">
    <ecc_errors>
      <volatile><sram_uncorrectable>{volatile}</sram_uncorrectable><dram_correctable>7</dram_correctable></volatile>
      <aggregate><sram_uncorrectable>N/A</sram_uncorrectable><dram_uncorrectable>2</dram_uncorrectable></aggregate>
    </ecc_errors>
    <remapped_rows>
      <remapped_row_unc>{rows}</remapped_row_unc>
      <remapped_row_pending>{pending}</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
  </gpu>
</nvidia_smi_log>
"""


def test_uncorrected_errors_of_this_boot_are_faults_and_old_ones_are_notes(tmp_path):
    record = read(tmp_path / "nvidia-smi.xml", SMI.format(volatile=3, rows=1, pending="Yes"))
    assert [(e.kind, e.severity) for e in record.events] == [
        ("ecc", Severity.FAULT),
        ("ecc", Severity.NOTE),
        ("row-remap", Severity.FAULT),
        ("row-remap", Severity.NOTE),
    ]
    assert "3 sram uncorrectable" in record.events[0].statement
    assert all(e.device == "00000000:19:00.0" and e.time is not None for e in record.events)


def test_a_healthy_gpu_gives_no_fault(tmp_path):
    record = read(tmp_path / "nvidia-smi.xml", SMI.format(volatile=0, rows=0, pending="No"))
    assert [e.severity for e in record.events] == [Severity.NOTE]


@pytest.mark.parametrize(
    "content",
    [
        "<nvidia_smi_log><gpu>",
        '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log>&a;</nvidia_smi_log>',
        "<nvidia_smi_log>" + "<a>" * 200_000,
    ],
)
def test_broken_or_hostile_xml_is_unreadable(tmp_path, content):
    record = read(tmp_path / "nvidia-smi.xml", content)
    assert record.files == ()
    assert record.unreadable[0][0].endswith("nvidia-smi.xml")


# -- Slurm ---


def test_slurm_tables_tell_of_lost_nodes_and_restarts(tmp_path):
    record = read(
        tmp_path / "sacct.txt",
        "JobID|State|ExitCode|NodeList|Restarts|Start|End\n"
        "1|COMPLETED|0:0|n[1-4]|0|2026-07-01T00:00:00|2026-07-01T01:00:00\n"
        "2|NODE_FAIL|1:0|n3|2|2026-07-01T00:00:00|2026-07-01T02:00:00\n"
        "3|CANCELLED by 1000|0:15|n4||2026-07-01T00:00:00|2026-07-01T03:00:00\n",
    )
    assert [(e.severity, e.device) for e in record.events] == [
        (Severity.NOTE, "n3"),
        (Severity.FAULT, "n3"),
        (Severity.NOTE, "n4"),
    ]
    assert "restarted 2 times" in record.events[0].statement


def test_slurm_json_of_either_version_is_read(tmp_path):
    jobs = [
        {"job_id": 5, "state": {"current": ["NODE_FAIL"]}, "exit_code": {"return_code": {"number": 1}}, "nodes": "n1"},
        {"job_id": 6, "state": {"current": "OUT_OF_MEMORY"}, "exit_code": {"return_code": 9}, "restart_cnt": 1},
        "nonsense",
    ]
    record = read(tmp_path / "sacct.json", json.dumps({"meta": {"slurm": {}}, "jobs": jobs}))
    assert {(e.severity, "exit 1" in e.statement) for e in record.events} >= {(Severity.FAULT, True)}
    assert len(record.events) == 3


# -- torchrun ---


def test_the_first_failing_worker_and_the_number_of_attempts_are_told(tmp_path):
    for attempt, rank, time, message in (
        (0, 1, 200, "ValueError: x"),
        (0, 0, 100, "CUDA error: NVLink"),
        (1, 0, 300, "y"),
    ):
        folder = tmp_path / "none_abc" / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True)
        body = {"message": {"message": message, "extraInfo": {"py_callstack": "...", "timestamp": str(time)}}}
        (folder / "error.json").write_text(json.dumps(body))
    record = read_hardware(find_hardware_files(tmp_path))
    assert record.events[0].statement.startswith("first failure: worker 0 of attempt 0")
    assert record.events[0].severity is Severity.UNCLEAR
    assert record.events[1].severity is Severity.APPLICATION
    assert "2 attempts" in record.events[-1].statement


@pytest.mark.process
def test_a_real_torchrun_failure_is_read(tmp_path):
    (tmp_path / "boom.py").write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise RuntimeError('gone wrong')\n"
        "if __name__ == '__main__': main()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path / "logs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--nproc-per-node", "1", str(tmp_path / "boom.py")], env=environment, timeout=120)
    assert done.returncode != 0
    record = read_hardware(find_hardware_files(tmp_path))
    assert "gone wrong" in record.events[0].statement
    assert record.events[0].time is not None


# -- the flight recorder ---


def entry(sequence, operation="nccl:all_reduce", *, sizes=((4,),), state="completed", created=10, group="0"):
    return {
        "process_group": (group, "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": operation,
        "input_sizes": [list(s) for s in sizes],
        "input_dtypes": ["Float"],
        "state": state,
        "time_created_ns": (created + sequence) * 10**9,
        "is_p2p": False,
    }


def dump(entries, ranks="[0, 1, 2]"):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries}


def dumps(tmp_path, by_rank, *, as_json=False):
    for rank, entries in by_rank.items():
        body = dump(entries)
        data = json.dumps(body).encode() if as_json else pickle.dumps(body, 2)
        (tmp_path / f"trace_dump_{rank}").write_bytes(data)
    return read_hardware(find_hardware_files(tmp_path)).events


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_stopped_early_is_named_with_its_collective(tmp_path, as_json):
    events = dumps(
        tmp_path,
        {
            r: [entry(n, state="scheduled" if n > 3 else "completed") for n in range(1, 4 if r == 1 else 8)]
            for r in range(3)
        },
        as_json=as_json,
    )
    texts = [e.statement for e in events]
    assert any(
        "rank 1 of default_pg stopped at collective 3 (all_reduce), other ranks went on to 7" in t for t in texts
    )
    assert any("waits longest" in t for t in texts)


def test_ranks_that_enqueued_different_operations_are_a_mismatch(tmp_path):
    events = dumps(
        tmp_path, {r: [entry(1), entry(2, "nccl:broadcast" if r == 2 else "nccl:all_reduce")] for r in range(3)}
    )
    assert [e.code for e in events] == [2]
    assert "differ in collective 2" in events[0].statement
    assert "broadcast" in events[0].statement


def test_sizes_must_agree_for_reductions_and_may_differ_for_all_to_all(tmp_path):
    sizes = {0: ((4,),), 1: ((5,),), 2: ((4,),)}
    assert dumps(tmp_path, {r: [entry(1, "nccl:all_to_all", sizes=sizes[r])] for r in range(3)}) == ()
    assert len(dumps(tmp_path, {r: [entry(1, sizes=sizes[r])] for r in range(3)})) == 1


def test_ranks_without_a_dump_are_listed(tmp_path):
    events = dumps(tmp_path, {0: [entry(1)], 2: [entry(1)]})
    assert [e.statement for e in events] == ["1 of 3 ranks left no dump: rank 1"]


def test_a_dump_whose_pickle_names_anything_is_refused_and_not_run(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'was-run'}",)

    (tmp_path / "nccl_dump_0").write_bytes(pickle.dumps({**dump([]), "x": Hostile()}, 2))
    record = read_hardware([tmp_path / "nccl_dump_0"])
    assert not (tmp_path / "was-run").exists()
    assert record.files == ()
    assert "refused" in record.unreadable[0][1]


def test_one_broken_dump_does_not_take_the_others_with_it(tmp_path):
    dumps(tmp_path, {r: [entry(1)] for r in range(3)})
    (tmp_path / "trace_dump_1").write_bytes((tmp_path / "trace_dump_1").read_bytes()[:100])
    record = read_hardware(find_hardware_files(tmp_path))
    assert len(record.files) == 2
    assert "trace_dump_1" in record.unreadable[0][0]


def test_real_dumps_show_the_injected_rank_waiting_longest(real):
    record = read_hardware(find_hardware_files(real / "nccl-flight-recorder"))
    assert record.unreadable == ()
    texts = [e.statement for e in record.events]
    assert any(t.startswith("rank 14 waits longest") for t in texts)
    assert any("14 of 16 ranks left no dump" in t for t in texts)
    assert read_dump(real / "nccl-flight-recorder" / "_dump_14").rank == 14


@pytest.mark.process
def test_a_real_gloo_dump_of_two_ranks_is_read(tmp_path):
    (tmp_path / "job.py").write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json\n"
        "dist.init_process_group('gloo')\n"
        "rank, x = dist.get_rank(), torch.ones(4)\n"
        "for _ in range(3): dist.all_reduce(x)\n"
        "open(f'{sys.argv[1]}/gloo_dump_{rank}', 'wb').write(_dump_fr_trace())\n"
        "text = _dump_fr_trace_json()\n"
        "open(f'{sys.argv[1]}/json/gloo_dump_{rank}', 'wb').write(text if isinstance(text, bytes) else text.encode())\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    (tmp_path / "json").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([*command, str(tmp_path / "job.py"), str(tmp_path)], env=environment, timeout=180, check=True)
    for folder in (tmp_path, tmp_path / "json"):
        files = sorted(folder.glob("gloo_dump_*"))
        assert [read_dump(path).rank for path in files] == [0, 1]
        assert [one.operation for one in read_dump(files[0]).collectives] == ["all_reduce"] * 3
        record = read_hardware(files)
        assert record.unreadable == ()
        # The last collective may not have been retired yet when the dump was written; that is a note.
        assert all(event.severity is Severity.NOTE for event in record.events)


# -- the package ---


def test_named_files_are_reported_even_if_they_are_not_there_or_unknown(tmp_path):
    (tmp_path / "strange.txt").write_text("hello")
    files = find_hardware_files(tmp_path, ["missing.log", "strange.txt"])
    record = read_hardware(files)
    assert {reason for _, reason in record.unreadable} == {"is not there", "no reader recognises it"}


def test_every_reader_file_exports_a_reader_of_its_own_name():
    modules = {m.name for m in pkgutil.iter_modules(hardware.__path__) if not m.name.startswith("_")} - {"contract"}
    assert {name.replace("_", "-") for name in modules} == {reader.format for reader in hardware.readers()}


def test_a_broken_reader_fails_loudly_with_its_name(monkeypatch, tmp_path):
    (tmp_path / "broken_reader.py").write_text("READER = missing_name\n")
    monkeypatch.setattr(hardware, "__path__", [*hardware.__path__, str(tmp_path)])
    hardware.readers.cache_clear()
    try:
        with pytest.raises(SpikeError, match="broken_reader"):
            hardware.readers()
    finally:
        hardware.readers.cache_clear()
        importlib.invalidate_caches()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(
        [b"<nvidia_smi_log", b"\x80\x02}pg_config", b'{"pg_config": ', b"JobID|State\n", b"NVRM: Xid (PCI:"]
    ),
    st.binary(max_size=300),
)
def test_any_bytes_behind_a_known_start_are_read_or_unreadable(tmp_path, head, body):
    path = tmp_path / "dump_1"
    path.write_bytes(head + body)
    record = read_hardware([path])
    assert len(record.files) + len(record.unreadable) == 1
