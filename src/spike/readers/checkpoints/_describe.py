"""How does what the files hold become one `Checkpoint`? Names, sizes, verdict, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from spike.domain.checkpoint import Checkpoint, Integrity, Role
from spike.domain.errors import InputUnreadable
from spike.domain.measured import NotMeasured
from spike.readers.checkpoints._bytes import load
from spike.readers.checkpoints._contents import Contents
from spike.readers.checkpoints._numbers import bits_of, decode
from spike.readers.checkpoints.contract import Damaged, LazyTensor

NO_STEP = NotMeasured("neither its contents nor its path name a step")
RECOVERY_STATE = ("optimizer", "scheduler", "rng", "data-cursor")
_HALF = re.compile(r'float16|fp16|"16-mixed"|"16-true"|"16"')
_PRECISION_KEY = re.compile(r"(^|\.)(fp16|dtype|torch_dtype|mixed_precision|precision|amp_dtype)$")


def describe(
    path: Path,
    layout: str,
    files: Iterable[Path],
    contents: Contents,
    *,
    damage: Damaged | None = None,
    notes: Iterable[str] = (),
    strays: Iterable[str] = (),
    missing: Iterable[str] = (),
) -> Checkpoint:
    """The checkpoint's facts. `damage` is the first thing that is wrong with it; `notes` do not change the verdict.

    `missing` adds to what `contents` shows to be absent.
    """
    stats = [file.stat() for file in files if file.is_file()]
    integrity = damage.integrity if damage else Integrity.COMPLETE
    counted = step_counter(contents)
    if counted is not None:
        contents.scalars["optimizer.step"] = counted
    reason = "; ".join([*([damage.message] if damage else []), *notes, *_count_note(contents, counted)])
    return Checkpoint(
        path=str(path.absolute()),
        layout=layout,
        step=contents.step if contents.step is not None else NO_STEP,
        integrity=integrity,
        reason=reason,
        num_tensors=len(contents.tensors),
        num_bytes=sum(stat.st_size for stat in stats),
        mtime_ns=max((stat.st_mtime_ns for stat in stats), default=0),
        missing=() if damage and not contents.tensors else (*_missing(contents), *missing),
        strays=tuple(sorted(strays)),
        config=tuple(contents.config.items()),
        scalars=tuple(contents.scalars.items()),
    )


def files_below(path: Path, limit: int = 200_000) -> list[Path]:
    """Regular files of a checkpoint, sorted; symbolic links to directories are not followed."""
    if path.is_file():
        return [path]
    found: list[Path] = []
    for folder, directories, names in path.walk() if hasattr(path, "walk") else _walk(path):
        directories.sort()
        found += [folder / name for name in sorted(names)]
        if len(found) > limit:
            break
    return found


def _walk(path: Path) -> Iterable[tuple[Path, list[str], list[str]]]:
    import os

    for folder, directories, names in os.walk(path):
        yield Path(folder), directories, names


def foreign_note(foreign: Iterable[str]) -> tuple[str, ...]:
    """A note on classes that a loader would import."""
    names = sorted(set(foreign))
    if not names:
        return ()
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (f"stores objects of {', '.join(names[:5])}{more}: a loader imports these",)


def _missing(contents: Contents) -> tuple[str, ...]:
    gone = [state for state in RECOVERY_STATE if state not in contents.present]
    if "scaler" not in contents.present and _needs_scaler(contents.config):
        gone.append("scaler")
    return tuple(gone)


def _needs_scaler(config: dict[str, str]) -> bool:
    """True where the configuration says float16: the other types train without a gradient scaler."""
    for key, value in config.items():
        if _PRECISION_KEY.search(key):
            if key.endswith("fp16") and value == "true":
                return True
            if not key.endswith("fp16") and _HALF.search(value) and "bfloat16" not in value:
                return True
    return False


def step_counter(contents: Contents) -> float | None:
    """The optimizer's own count of updates: a few bytes of the first and the last moment that has one."""
    stored = contents.scalars.get("optimizer.step")
    if stored is not None:
        return stored
    counters = list(filter(is_counter, contents.tensors))
    found = [count_of(tensor) for tensor in {id(t): t for t in (counters[:1] + counters[-1:])}.values()]
    return max((value for value in found if value is not None), default=None)


def is_counter(tensor: LazyTensor) -> bool:
    """True for an optimizer's count of updates."""
    return tensor.role is Role.MOMENT and tensor.key == "step" and tensor.data.nbytes <= 8


def count_of(tensor: LazyTensor) -> float | None:
    """The number in a counter, None where its bytes cannot be read."""
    try:
        raw = np.frombuffer(load(tensor.data), dtype=np.uint8)
        return float(decode(bits_of(raw, tensor.dtype), tensor.dtype).reshape(-1)[0])
    except (InputUnreadable, ValueError, IndexError):
        return None


def _count_note(contents: Contents, counted: float | None) -> tuple[str, ...]:
    """The optimizer's count against the trainer's step: skipped updates explain a difference, another save too."""
    if contents.step is None or counted is None or not counted.is_integer():
        return ()
    if int(counted) == contents.step - int(contents.scalars.get("skipped_steps", 0)):
        return ()
    return (
        f"its optimizer counts {int(counted)} updates where the step is {contents.step}: skipped updates, an optimizer "
        "that began anew, or a part of another save",
    )
