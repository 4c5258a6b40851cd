"""What will the run do to its checkpoints while the case is open? Said for those that the case keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spike.domain.case import CaseFacts
from spike.domain.errors import SpikeError
from spike.readers.checkpoints import find_checkpoints, next_deleted


def rotation_warnings(facts: CaseFacts) -> Iterator[str]:
    """One sentence for each directory from which the next save of the run takes a checkpoint that is pinned."""
    directory = Path(facts.run.directory)
    pins = (facts.last_good, *facts.earlier, *facts.suspect)
    held = {pin.original for pin in pins if pin is not None}
    if not held or not directory.is_dir():
        return
    try:
        present = find_checkpoints(directory, facts.run.checkpoints)
    except SpikeError:
        return  # the freeze has said why they cannot be looked for
    for rotation in next_deleted(present):
        names = [Path(path).name for path in rotation.paths if path in held]
        if names:
            may = f" if {rotation.assumes}" if rotation.assumes else ""
            yield (
                f"{', '.join(names)} will be {rotation.fate} in the run at its next save{may} ({rotation.rule}): "
                "the case keeps what it held"
            )
