"""What is in this run directory? A first `spike.yaml`, with a comment wherever something could not be found.

The only action that writes into a run directory, and it writes this one file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from spike.domain.checkpoint import Checkpoint
from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints import find_checkpoints
from spike.readers.metrics import find_metric_files
from spike.readers.run_file import FILE_NAME, parse_run
from spike.readers.source_tree import read_source

SCRIPTS = ("train.py", "run.py", "main.py", "pretrain.py", "finetune.py", "train_ddp.py", "train_hf.py")
LAUNCHERS = ("launch.sh", "run.sh", "train.sh", "cmd.sh", "command.txt", "cmd.txt")
RESUME_FLAGS = ("--resume-from-checkpoint", "--resume_from_checkpoint", "--resume-from", "--resume", "--load", "--ckpt")
MAX_SCRIPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """What `spike init` saw, and the text it proposes."""

    directory: Path
    launch: str
    launch_note: str
    checkpoints: str
    num_checkpoints: int
    last_step: int | None
    metrics: tuple[str, ...]
    code: str
    text: str


def look(directory: Path, *, launch: str = "") -> Found:
    """Look at the run and compose its description. Nothing is written."""
    if not directory.is_dir():
        raise SpikeError(f"{directory} is no directory", hint="spike init --run RUN_DIRECTORY")
    checkpoints = find_checkpoints(directory)
    pattern = _pattern(directory, checkpoints)
    metrics = tuple(p.relative_to(directory).as_posix() for p in find_metric_files(directory))
    command, note = (launch, "") if launch else _launch(directory)
    steps = [c.step for c in checkpoints if isinstance(c.step, int)]
    code = _code(directory)
    found = Found(
        directory=directory,
        launch=command,
        launch_note=note,
        checkpoints=pattern,
        num_checkpoints=len(checkpoints),
        last_step=max(steps, default=None),
        metrics=metrics,
        code=code,
        text="",
    )
    return replace(found, text=_compose(found))


def write(found: Found, *, force: bool = False) -> Path:
    """Write the description. Raises `SpikeError` where there is one already and `force` is not given."""
    path = found.directory / FILE_NAME
    parse_run(found.text, found.directory, str(path))  # what we propose must be what we accept
    if path.exists() and not force:
        raise SpikeError(f"{path} is there already", hint="edit it, or spike init --force to replace it")
    # One name for all: what a killed init left here is overwritten by the next, and nothing stays in the run.
    temporary = path.with_name(f".{FILE_NAME}.new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(found.text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise SpikeError(
            f"cannot write {path}: {error.strerror}", hint="make room or get write permission there, then spike init"
        ) from error
    return path


def _pattern(directory: Path, checkpoints: tuple[Checkpoint, ...]) -> str:
    """The path pattern that most checkpoints share, with {step} for their number; "" where none is shared."""
    patterns: Counter[str] = Counter()
    for checkpoint in checkpoints:
        if isinstance(checkpoint.step, NotMeasured):
            continue
        relative = os.path.relpath(checkpoint.path, directory)
        number = re.compile(rf"(?<!\d)0*{checkpoint.step}(?!\d)")
        places = list(number.finditer(relative))
        if places:
            last = places[-1]
            patterns[relative[: last.start()] + "{step}" + relative[last.end() :]] += 1
    return patterns.most_common(1)[0][0] if patterns else ""


def _launch(directory: Path) -> tuple[str, str]:
    """(command, what is uncertain about it)."""
    for name in LAUNCHERS:
        path = directory / name
        if path.is_file() and path.stat().st_size < MAX_SCRIPT_BYTES:
            line = _training_line(path.read_text(encoding="utf-8", errors="replace"))
            if line:
                return _with_resume(line, directory), f"taken from {name}; check that it resumes from {{checkpoint}}"
    script = next((name for name in SCRIPTS if (directory / name).is_file()), None)
    if script is None:
        return "", "no training script was recognised"
    flag = _resume_flag(directory / script)
    if flag:
        return (
            f"python {script} {flag} {{checkpoint}}",
            f"guessed from {script}, which knows {flag}; add its other arguments",
        )
    return f"python {script}", f"guessed from {script}; no resume flag was recognised in it"


def _training_line(text: str) -> str:
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        stripped = line.strip()
        if re.search(
            r"\b(torchrun|accelerate|deepspeed|python3?|srun)\b.*\.py\b", stripped
        ) and not stripped.startswith("#"):
            return " ".join(stripped.split())
    return ""


def _with_resume(line: str, directory: Path) -> str:
    if "{checkpoint}" in line:
        return line
    for flag in RESUME_FLAGS:
        replaced = re.sub(rf"({re.escape(flag)}[= ])\S+", r"\1{checkpoint}", line)
        if replaced != line:
            return replaced
    script = next((w for w in shlex.split(line, posix=True) if w.endswith(".py")), "")
    flag = _resume_flag(directory / script) if script else ""
    return f"{line} {flag} {{checkpoint}}" if flag else line


def _resume_flag(script: Path) -> str:
    try:
        if script.stat().st_size > MAX_SCRIPT_BYTES:
            return ""
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((flag for flag in RESUME_FLAGS if f'"{flag}"' in text or f"'{flag}'" in text), "")


def _code(directory: Path) -> str:
    try:
        state = read_source(directory)
    except InputUnreadable as error:
        return f"not readable: {error.message}"
    if isinstance(state, NotMeasured):
        return f"not under version control here ({state.not_measured}): name its directory with `code:`"
    return f"commit {state.commit[:10]}{', with uncommitted changes' if state.is_modified else ''}"


def _compose(found: Found) -> str:
    lines = ["# The run, as spike sees it. `spike init` wrote this; correct what it could not know."]
    if found.launch:
        lines.append(f"launch: {_scalar(found.launch)}")
    else:
        lines.append("# launch: torchrun --nproc-per-node 8 train.py --resume {checkpoint}")
    if found.launch_note:
        lines.append(f"#   ^ {found.launch_note}")
    if "{checkpoint}" not in found.launch:
        lines.append(
            "#   ^ {checkpoint} stands for the path to resume from; without it the newest one is left in place"
        )
    if found.checkpoints:
        lines.append(f"checkpoints: {_scalar(found.checkpoints)}  # {found.num_checkpoints} found")
    elif found.num_checkpoints:
        lines.append(
            f"# checkpoints: {found.num_checkpoints} found by layout; a pattern like out/step-{{step}} is not needed"
        )
    else:
        lines.append("# checkpoints: none found; a pattern like out/step-{step} says where they are")
    if found.metrics:
        shown = found.metrics if len(found.metrics) <= 8 else (os.path.commonpath(found.metrics) or ".",)
        lines.append("metrics:")
        lines += [f"  - {_scalar(name)}" for name in shown]
    else:
        lines.append("# metrics: no log with losses found; name files or directories here")
    lines.append(f"# code: {found.code}")
    lines += [
        "# knobs:                       # how the command itself makes a change, by intervention or factor",
        "#   learning-rate: --lr {value}",
        "#   full-precision: --dtype fp32",
        "# holdout: python eval.py --checkpoint {checkpoint}   # prints one number; lower is better",
        "# devices: 8                   # world size, for the bill in the postmortem",
    ]
    return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    """A YAML scalar on one line; quoted where YAML would read something else."""
    if re.fullmatch(r"[\w./{}\-+=,@ ]+", text) and not text.startswith(("{", "-", " ", "@")) and ": " not in text:
        return text
    if not text.isprintable():  # a file name may hold anything; YAML takes the escapes of JSON
        return json.dumps(text)
    return "'" + text.replace("'", "''") + "'"
