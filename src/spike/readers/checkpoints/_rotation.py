"""What would the run do next to its checkpoints? Each layout's rule, applied directory by directory."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from spike.domain.checkpoint import Checkpoint
from spike.domain.rotation import Resume, Rotation
from spike.readers.checkpoints import reader_of

UNKNOWN_RULE = "the training script decides: no library rotates files of this layout"


def next_deleted(checkpoints: Sequence[Checkpoint]) -> tuple[Rotation, ...]:
    """See `spike.readers.checkpoints.next_deleted`."""
    found = []
    for layout, directory, group in _groups(checkpoints):
        rule = getattr(reader_of(layout), "rotation", None)
        if rule is not None:
            found.append(rule(group))
        else:
            found.append(Rotation(layout, directory, rule=UNKNOWN_RULE, unknown="nothing in the files tells"))
    return tuple(found)


def resumed_from(checkpoints: Sequence[Checkpoint]) -> tuple[Resume, ...]:
    """See `spike.readers.checkpoints.resumed_from`."""
    found = []
    for layout, directory, group in _groups(checkpoints):
        rule = getattr(reader_of(layout), "latest", None)
        if rule is not None:
            path, words = rule(group)
            whole = next((c.path for c in reversed(group) if c.is_whole), "")
            found.append(Resume(layout, directory, words, path, whole))
    return tuple(found)


def setting(checkpoint: Checkpoint, key: str) -> object:
    """A stored setting as its JSON value; `KeyError` where the checkpoint does not hold it."""
    return json.loads(dict(checkpoint.config)[key])


def limit_of(checkpoints: Sequence[Checkpoint], key: str) -> tuple[bool, int | None]:
    """(stored, number): a stored limit of the newest checkpoint that holds it; the number is None for "no limit"."""
    for checkpoint in reversed(checkpoints):
        try:
            value = setting(checkpoint, key)
        except (KeyError, ValueError):
            continue
        if value is None or isinstance(value, int):
            return True, None if value is None or isinstance(value, bool) else value
    return False, None


def directories(folder: str, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """(number, path) of the sub-directories with such a name, whole or not, by number: rotation looks at names only."""
    try:
        entries = [entry for entry in Path(folder).iterdir() if entry.is_dir()]
    except OSError:
        return []
    return sorted((int(match[1]), entry) for entry in entries if (match := pattern.match(entry.name)))


def highest(folder: str, pattern: re.Pattern[str], needs: str = "") -> str:
    """The directory with the highest number that holds `needs`; "" where there is none."""
    found = [path for _, path in directories(folder, pattern) if not needs or (path / needs).exists()]
    return str(found[-1]) if found else ""


def _groups(checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[str, str, tuple[Checkpoint, ...]]]:
    """(layout, directory, checkpoints oldest first) of what rotates together."""
    groups: dict[tuple[str, str], list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        if checkpoint.layout != "unknown":
            groups[(checkpoint.layout, str(Path(checkpoint.path).parent))].append(checkpoint)
    for (layout, directory), group in sorted(groups.items()):
        yield layout, directory, tuple(sorted(group, key=_age))


def _age(checkpoint: Checkpoint) -> tuple[int, int, str]:
    return checkpoint.step if isinstance(checkpoint.step, int) else -1, checkpoint.mtime_ns, checkpoint.path
