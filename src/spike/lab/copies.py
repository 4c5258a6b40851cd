"""What stands in for the run where the kernel cannot overlay it? A copy: small files copied, large ones linked.

Only symbolic links: a hard link would share its bytes with the run, and a write to it would reach them. Links lead
to the real files, which the guard forbids to write.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spike.lab.guards.overlay import is_below

COPIED_BYTES = 16 << 20
"""Files up to this size are copied, so that a command may append to them; larger ones are data and checkpoints."""

_LINKED_WHOLE = frozenset({".git", ".venv", "venv", "node_modules", ".hg"})
_LEFT_OUT = frozenset({"__pycache__"})


@dataclass(frozen=True, slots=True)
class Edits:
    """Differences between the run and what the trial sees; see `view.Wanted`."""

    place: tuple[tuple[str, str], ...] = ()
    merge: tuple[tuple[str, str], ...] = ()
    hide: tuple[str, ...] = ()


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """The existing directories among `paths` that lie in no other of them."""
    found = sorted({str(Path(path).resolve()) for path in paths if path and Path(path).is_dir()})
    return tuple(p for p in found if not any(o != p and is_below(p, o) for o in found))


def replace_path(text: str, original: str, copy: str) -> str:
    """`text` with `original`, where it stands as a whole path or the beginning of one, replaced."""
    return re.sub(rf"(?<![\w./-]){re.escape(original)}(?=/|[^\w.-]|$)", lambda _: copy, text)


def build(
    roots: tuple[str, ...], into: Path, edits: Edits, *, keep_out: tuple[str, ...], live: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Copy every root below `into`; (real, copy) of each.

    `keep_out` are directories that are left out; files in `live` places are copied whatever their size if the
    place is a file. Edits outside the roots cannot be made and are left to the caller.
    """
    copied = tuple((root, str(into / f"{number}-{Path(root).name or 'root'}")) for number, root in enumerate(roots))
    mapping = dict(copied)
    for real, copy in copied:
        _copy_directory(Path(real), Path(copy), keep_out, frozenset(live), mapping)
    for source, path in edits.place:
        target = _target(path, mapping)
        if target is not None:
            _clear(target)
            _stand_in(Path(source), target)
    for source, path in edits.merge:
        target = _target(path, mapping)
        if target is not None:
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=_replace)
    for path in edits.hide:
        target = _target(path, mapping)
        if target is not None:
            _clear(target)
    return copied


def _replace(source: str, target: str) -> str:
    Path(target).unlink(missing_ok=True)
    return str(shutil.copy2(source, target, follow_symlinks=False))


def _target(path: str, mapping: dict[str, str]) -> Path | None:
    lexical = Path(os.path.normpath(path))
    settled = str(lexical.parent.resolve() / lexical.name)
    for real, copy in mapping.items():
        if is_below(settled, real):
            return Path(copy + settled[len(real) :])
    return None


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy_directory(
    real: Path, copy: Path, keep_out: tuple[str, ...], live: frozenset[str], mapping: dict[str, str]
) -> None:
    copy.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(real):
        target = copy / entry.name
        if entry.path in keep_out or entry.name in _LEFT_OUT:
            continue
        if entry.is_symlink():
            target.symlink_to(_redirected(Path(entry.path), mapping))
        elif entry.is_dir(follow_symlinks=False):
            if entry.name in _LINKED_WHOLE or (Path(entry.path) / "pyvenv.cfg").exists():
                target.symlink_to(entry.path)
            else:
                _copy_directory(Path(entry.path), target, keep_out, live, mapping)
        elif entry.is_file(follow_symlinks=False):
            if entry.path in live or entry.stat(follow_symlinks=False).st_size <= COPIED_BYTES:
                shutil.copy2(entry.path, target)
            else:
                target.symlink_to(entry.path)
    shutil.copystat(real, copy)
    copy.chmod(copy.stat().st_mode | 0o700)


def _redirected(link: Path, mapping: dict[str, str]) -> str:
    """The link's target; inside the copy where it points into the run, absolute where it points elsewhere."""
    text = os.readlink(link)  # noqa: PTH115 - the text itself, relative or not
    lexical = os.path.normpath(link.parent / text)
    for real, copy in mapping.items():
        if is_below(lexical, real):
            return text if is_below(str(link), real) and not text.startswith("/") else copy + lexical[len(real) :]
    return lexical


def _stand_in(source: Path, target: Path) -> None:
    """`source` seen at `target`: directories are real, files are links, small ones copies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        if source.stat().st_size <= COPIED_BYTES:
            shutil.copy2(source, target)
            target.chmod(target.stat().st_mode | 0o600)
        else:
            target.symlink_to(source)
        return
    target.mkdir()
    for child in source.iterdir():
        _stand_in(child, target / child.name)
    shutil.copystat(source, target)
    target.chmod(target.stat().st_mode | 0o700)


def is_unchanged(copy: Path, real: Path) -> bool:
    """True where the copied file still has the size and time of the original."""
    try:
        original, copied = real.lstat(), copy.lstat()
    except FileNotFoundError:
        return False
    return (original.st_size, original.st_mtime_ns) == (copied.st_size, copied.st_mtime_ns)


def stat_state(roots: Iterable[str], leave_out: tuple[str, ...] = ()) -> dict[str, tuple[int, ...]]:
    """(mode, size, mtime in ns, inode) of everything below `roots` but `leave_out`, without following links."""
    found: dict[str, tuple[int, ...]] = {}
    for root in roots:
        for directory, folders, files in os.walk(root):
            folders[:] = [name for name in folders if f"{directory}/{name}" not in leave_out]
            for name in (".", *folders, *files):
                path = os.path.normpath(f"{directory}/{name}")
                try:
                    facts = os.lstat(path)
                except FileNotFoundError:
                    continue
                found[path] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return found


def differences(
    before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]], only: slice = slice(None)
) -> tuple[str, ...]:
    """Paths that changed; those that appeared or vanished count where everything is compared."""
    everything = only == slice(None)
    paths = before.keys() | after.keys() if everything else before.keys() & after.keys()
    nothing: tuple[int, ...] = ()
    return tuple(sorted(path for path in paths if before.get(path, nothing)[only] != after.get(path, nothing)[only]))
