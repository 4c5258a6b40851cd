"""Is the environment recorded truthfully, and nothing of it that is nobody's business?"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from spike.casefile.codec import from_payload, to_payload
from spike.domain.environment import EnvironmentFacts
from spike.domain.measured import NotMeasured
from spike.readers import environment
from spike.readers.environment import allowed_variables, launch_interpreter, read_environment


def test_only_listed_variables_are_read() -> None:
    given = {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "x", "HOME": "/root", "NCCL_DEBUG": "INFO", "SSH_AUTH_SOCK": "s"}
    assert allowed_variables(given) == (("CUDA_VISIBLE_DEVICES", "0"), ("NCCL_DEBUG", "INFO"))


def test_a_secret_inside_a_listed_variable_is_taken_out() -> None:
    given = {"TORCH_PROXY": "https://ada:hunter2@proxy", "NCCL_API_KEY": "tiger42"}
    assert "hunter2" not in repr(allowed_variables(given))
    assert "tiger42" not in repr(allowed_variables(given))


def test_the_machine_and_the_interpreter_of_the_launch_command_are_named(tmp_path: Path) -> None:
    found = read_environment(f"OMP_NUM_THREADS=1 {sys.executable} train.py", tmp_path, (("OMP_NUM_THREADS", "3"),))
    assert found.host == socket.gethostname()
    assert found.kernel == os.uname().release
    assert found.interpreter == sys.executable
    assert found.python == sys.version.split()[0]
    assert ("OMP_NUM_THREADS", "3") in found.variables
    assert not isinstance(found.packages, NotMeasured)
    assert "numpy" in {name for name, _ in found.packages}
    assert found.memory_bytes > 1 << 20
    assert found.cpu_flags


def test_packages_that_are_spikes_own_are_said_to_be(tmp_path: Path) -> None:
    found = read_environment("srun --nodes 4 train", tmp_path)
    assert "spike's own" in found.interpreter


def test_an_interpreter_that_does_not_answer_is_a_reason_and_no_guess(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    found = read_environment(f"{broken} train.py", tmp_path)
    assert isinstance(found.packages, NotMeasured)
    assert str(broken) in found.packages.not_measured


def test_nothing_of_the_run_directory_is_imported_when_packages_are_listed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name in ("json.py", "sitecustomize.py", "importlib.py"):
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w').close()\n")
    read_environment(f"{sys.executable} train.py", tmp_path)
    assert not marker.exists()


def test_the_interpreter_behind_a_launcher_script_is_found_by_its_first_line(tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{sys.executable}\n")
    launcher.chmod(0o755)
    assert launch_interpreter("./torchrun --nproc 2 train.py", tmp_path) == Path(sys.executable)
    launcher.write_text("#!/usr/bin/env no-such-python\n")
    assert launch_interpreter("./torchrun", tmp_path) is None
    assert launch_interpreter("'unbalanced", tmp_path) is None
    assert launch_interpreter("", tmp_path) is None
    assert launch_interpreter("/no/such/python3 x", tmp_path) is None


def test_devices_come_from_nvidia_smi_or_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(environment._devices(), NotMeasured)
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '0, NVIDIA H200, GPU-1, 570.1, 143771, 0'\n")
    fake.chmod(0o755)
    devices = environment._devices()
    assert not isinstance(devices, NotMeasured)
    assert (devices[0].name, devices[0].driver) == ("NVIDIA H200", "570.1")
    fake.write_text("#!/bin/sh\nexit 9\n")
    assert isinstance(environment._devices(), NotMeasured)


def test_the_facts_survive_the_way_through_the_case() -> None:
    found = read_environment()
    assert from_payload(EnvironmentFacts, to_payload(found)) == found
