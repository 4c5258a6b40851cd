"""What did the run run on? Host, kernel, processors, devices, libraries and the variables that steer them.

Only variables on a list are read: an environment is full of secrets. Packages are those of the interpreter that the
launch command starts, where it can be asked; otherwise the answer says that they are spike's own.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from spike.domain.environment import Device, EnvironmentFacts
from spike.domain.measured import NotMeasured
from spike.readers.redaction import redact_pairs

ALLOWED_PREFIXES = (
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "NCCL_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TORCHELASTIC_",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "NUMEXPR_",
    "ATEN_",
    "TRITON_",
    "XLA_",
    "NVIDIA_",
    "NVTE_",
    "HIP_",
    "ROCR_",
    "ROCM_",
    "RCCL_",
    "HSA_",
    "FI_",
    "UCX_",
    "GLOO_",
    "TP_",
    "SLURM_",
    "ACCELERATE_",
    "FSDP_",
    "DS_",
    "DEEPSPEED_",
    "MEGATRON_",
)
ALLOWED_NAMES = frozenset(
    {
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PYTHONHASHSEED",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "TOKENIZERS_PARALLELISM",
        "MALLOC_CONF",
        "LC_ALL",
        "TZ",
    }
)
ASK_S = 20.0
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_SMI_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total", "ecc.errors.uncorrected.volatile.total")
_LIST_PACKAGES = (
    "import json,sys\nfrom importlib import metadata\n"
    "print(json.dumps([sys.version.split()[0],sorted({(d.metadata['Name'] or '',d.version) for d in "
    "metadata.distributions()})]))"
)


def read_environment(
    launch: str = "", cwd: Path | None = None, extra: tuple[tuple[str, str], ...] = ()
) -> EnvironmentFacts:
    """The machine that spike runs on, and the libraries of the interpreter that `launch` starts.

    `cwd` is where the command is started, `extra` the variables that spike.yaml adds to it.
    """
    interpreter, python, packages = _packages(launch, cwd)
    cpu, flags = _cpu()
    return EnvironmentFacts(
        host=socket.gethostname(),
        platform=platform.platform(),
        kernel=platform.release(),
        cpu=cpu,
        cpu_flags=flags,
        num_cpus=os.cpu_count() or 0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        driver=_driver(),
        devices=_devices(),
        interpreter=interpreter,
        python=python,
        packages=packages,
        variables=allowed_variables(os.environ | dict(extra)),
    )


def allowed_variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables on the list, by name, with whatever looks like a secret taken out even of those."""
    kept = ((k, v) for k, v in sorted(environment.items()) if k.startswith(ALLOWED_PREFIXES) or k in ALLOWED_NAMES)
    return redact_pairs(kept)


def launch_interpreter(launch: str, cwd: Path | None = None) -> Path | None:
    """The Python that a launch command starts, where its words show it: `python train.py`, or `torchrun` by its
    first line (`#!/venv/bin/python`)."""
    try:
        words = shlex.split(launch)
    except ValueError:
        return None
    while words and ("=" in words[0].split("/")[0] or words[0] in ("env", "exec", "nohup", "time")):
        words = words[1:]
    if not words:
        return None
    command = words[0]
    found = str((cwd or Path.cwd()) / command) if "/" in command else shutil.which(command)
    if found is None or not os.access(found, os.X_OK):
        return None
    path = Path(found)
    return path if path.name.startswith("python") else _shebang(path)


def _shebang(script: Path) -> Path | None:
    with script.open("rb") as file:
        first = file.readline(512)
    if not first.startswith(b"#!"):
        return None
    words = os.fsdecode(first[2:]).split()
    if len(words) == 2 and words[0].endswith("/env"):
        words = [shutil.which(words[1]) or ""]
    named = words and Path(words[0]).name.startswith("python") and os.access(words[0], os.X_OK)
    return Path(words[0]) if named else None


def _packages(launch: str, cwd: Path | None) -> tuple[str, str, tuple[tuple[str, str], ...] | NotMeasured]:
    """(interpreter, its version, its packages); isolated mode, so that nothing of the run's directory is imported."""
    path = launch_interpreter(launch, cwd)
    if path is None:
        own = tuple(sorted({(d.metadata["Name"] or "", d.version) for d in metadata.distributions()}))
        return f"{sys.executable} (spike's own: the launch command does not show one)", sys.version.split()[0], own
    try:
        text = _ask((str(path), "-I", "-c", _LIST_PACKAGES))
        version, rows = json.loads(text)
        return str(path), str(version), tuple((str(name), str(release)) for name, release in rows)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return str(path), "", NotMeasured(f"{path} does not list its packages: {error}")


def _cpu() -> tuple[str, tuple[str, ...]]:
    """Model name and instruction-set flags of the first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor(), ()
    rows = [line.partition(":") for line in text.split("\n\n", 1)[0].splitlines()]
    named = {key.strip(): value.strip() for key, _, value in rows}
    flags = named.get("flags", named.get("Features", ""))
    return named.get("model name", platform.processor()), tuple(flags.split())


def _driver() -> str | NotMeasured:
    try:
        return _DRIVER_FILE.read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()
    except (OSError, IndexError):
        return NotMeasured(f"{_DRIVER_FILE} is not there")


def _devices() -> tuple[Device, ...] | NotMeasured:
    if shutil.which("nvidia-smi") is None:
        return NotMeasured("nvidia-smi is not installed")
    try:
        query = f"--query-gpu={','.join(_SMI_FIELDS)}"
        text = _ask(("nvidia-smi", query, "--format=csv,noheader,nounits"))
    except (OSError, subprocess.SubprocessError) as error:
        return NotMeasured(f"nvidia-smi failed: {error}")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return tuple(Device(*row) for row in rows if len(row) == len(_SMI_FIELDS))


def read_nvidia_smi() -> bytes | NotMeasured:
    """`nvidia-smi -q -x`: every counter of every GPU, as XML; or why there is none."""
    if shutil.which("nvidia-smi") is None:
        return NotMeasured("nvidia-smi is not installed")
    try:
        return _ask(("nvidia-smi", "-q", "-x")).encode("utf-8", "surrogateescape")
    except (OSError, subprocess.SubprocessError) as error:
        return NotMeasured(f"nvidia-smi failed: {error}")


def _ask(command: tuple[str, ...]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
