"""What does freeze do with a case that is complete? Compare it with its manifest, and replace nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from spike.actions.evidence.pins import HELD
from spike.casefile.case import FACTS_NAME, Case
from spike.casefile.manifest import EVIDENCE, MANIFEST_NAME, look_again, read_manifest, write_manifest
from spike.domain.errors import ExitCode, SpikeError
from spike.domain.manifest import compare

COMMAND = "freeze"


def check_again(case: Case, on_progress: Callable[[int, int], None] | None) -> None:
    """Raises `SpikeError` with exit code 1 where the evidence differs from its manifest."""
    manifest = read_manifest(case.path)
    assert manifest is not None
    total, done = sum(e.size for e in manifest.entries), 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if on_progress is not None:
            on_progress(min(done, total), total)

    name = f"{EVIDENCE}/{MANIFEST_NAME}"
    is_recorded = any(a.path == name for entry in case.journal() for a in entry.artefacts)
    # Killed between manifest and journal, it is still the same freeze: what has not moved since is not read again.
    known = () if is_recorded else manifest.entries
    found = look_again(case.path / EVIDENCE, manifest.algorithm, known=known, on_bytes=advance)
    changes = compare(manifest, found)
    content = [c for c in changes if c.is_content]
    if content:
        case.record(COMMAND, f"evidence differs from its manifest: {content[0].statement}", int(ExitCode.ANSWER_NO))
        raise SpikeError(
            f"{case.path} differs from its manifest in {len(content)} places; first: {content[0].statement}",
            hint=f"spike verify --case {case.path} names them all; spike freeze --new opens another case",
            exit_code=ExitCode.ANSWER_NO,
        )
    shutil.rmtree(case.path / HELD, ignore_errors=True)
    artefacts = () if is_recorded else (*write_manifest(case.path, manifest), FACTS_NAME)
    case.record(COMMAND, f"found complete, {len(manifest.entries)} entries unchanged", 0, artefacts)
