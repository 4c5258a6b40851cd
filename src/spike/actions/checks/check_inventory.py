"""Which checkpoints are there, what is wrong with each, what happens to them next, and which one would be loaded?"""

from __future__ import annotations

from pathlib import Path

from spike.actions.checks.check_scene import Scene
from spike.domain.checkpoint import Checkpoint, Integrity
from spike.domain.rotation import Rotation
from spike.readers.checkpoints import next_deleted, resumed_from

Rows = tuple[tuple[str, ...], ...]
Table = tuple[str, Rows]


def inventory(scene: Scene) -> tuple[Table, ...]:
    """The table of all checkpoints, and per directory what the next save and a resume would do."""
    rotations = next_deleted(scene.present)
    return (_checkpoints(scene, rotations), *_next_save(scene, rotations), *_resume(scene))


def _checkpoints(scene: Scene, rotations: tuple[Rotation, ...]) -> Table:
    roles = [
        *((c, "suspect") for c in scene.suspect),
        *(((scene.last_good, "last good"),) if scene.last_good else ()),
        *((c, "earlier") for c in scene.earlier),
        *((c, "other") for c in scene.others),
    ]
    roles.sort(key=lambda pair: (-_step(pair[0]), pair[0].path))
    fates = {path: rotation for rotation in rotations for path in rotation.paths}
    rows: list[tuple[str, ...]] = [
        ("step", "role", "layout", "verdict", "path", "missing", "next save", "strays", "note")
    ]
    for checkpoint, role in roles:
        verdict, note = _verdict(scene, checkpoint)
        original = scene.originals.get(checkpoint.path, checkpoint.path)
        rows.append(
            (
                str(checkpoint.step) if isinstance(checkpoint.step, int) else "?",
                role,
                checkpoint.layout,
                verdict,
                scene.original(checkpoint),
                ", ".join(checkpoint.missing) or ("nothing" if checkpoint.num_tensors else ""),
                _fate(fates.get(original), is_pinned=checkpoint.path in scene.originals),
                _few(checkpoint.strays),
                note,
            )
        )
    rows += [("?", "rejected", "", "", path, "", "", "", reason) for path, reason in scene.not_used]
    return "checkpoints", tuple(rows)


def _verdict(scene: Scene, checkpoint: Checkpoint) -> tuple[str, str]:
    """(verdict, note): what reading every byte found, where that was done, stands above what the index says."""
    scan = scene.scanned(checkpoint)
    if scan is None or not scan.unreadable or not checkpoint.is_whole:
        return checkpoint.integrity.value, checkpoint.reason
    where, why = scan.unreadable[0]
    return Integrity.CORRUPT.value, "; ".join(filter(None, (f"{where} {why}", checkpoint.reason)))


def _fate(rotation: Rotation | None, *, is_pinned: bool) -> str:
    if rotation is None:
        return ""
    fate = f"may be {rotation.fate}" if rotation.assumes else rotation.fate
    return f"{fate}; the case keeps it" if is_pinned else fate


def _next_save(scene: Scene, rotations: tuple[Rotation, ...]) -> tuple[Table, ...]:
    """One row a directory: what goes, by which rule, and what that stands on."""
    rows: list[tuple[str, ...]] = [("layout", "directory", "goes", "rule", "assumed", "not known")]
    for rotation in rotations:
        goes = ", ".join(Path(path).name for path in rotation.paths)
        goes = (
            f"{goes} {'may be' if rotation.assumes else 'is'} {rotation.fate}"
            if goes
            else "?"
            if rotation.unknown
            else "nothing"
        )
        place = _relative(scene, rotation.directory)
        rows.append((rotation.layout, place, goes, rotation.rule, rotation.assumes, rotation.unknown))
    return (("what the next save of the run does to them", tuple(rows)),) if len(rows) > 1 else ()


def _resume(scene: Scene) -> tuple[Table, ...]:
    """Only where the stack would load another one than the newest whole one."""
    rows: list[tuple[str, ...]] = [("layout", "directory", "loads", "newest whole", "rule")]
    for resume in resumed_from(scene.present):
        if resume.differs:
            loads, whole = (Path(path).name if path else "none" for path in (resume.path, resume.newest_whole))
            rows.append((resume.layout, _relative(scene, resume.directory), loads, whole, resume.rule))
    return (("a resume would NOT load the newest whole checkpoint", tuple(rows)),) if len(rows) > 1 else ()


def _relative(scene: Scene, directory: str) -> str:
    path = Path(directory)
    return path.relative_to(scene.directory).as_posix() if path.is_relative_to(scene.directory) else directory


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _step(checkpoint: Checkpoint) -> int:
    return checkpoint.step if isinstance(checkpoint.step, int) else -1
