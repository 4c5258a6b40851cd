"""How can a command write wherever it likes and change nothing? Overlays over the real paths, in private mounts.

Every mount of the namespace becomes read-only; then each directory that a training command may want to write to
gets an overlay at its own path, whose writes land in the trial's scratch. An overlay whose lower directory
contains the scratch itself is refused by the kernel, so for those the writes land in a bounded memory file system.
Nothing is ever unmounted: the namespace, and all of this with it, ends with its last process.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spike.lab.guards import kernel
from spike.lab.guards.edits import clear, files_of, mirror, put, remove_extras
from spike.lab.guards.entry import Entry

MEMORY_FRACTION = 0.25
MEMORY_CEILING_BYTES = 8 << 30
"""Stray writes outside the run share the memory of the training; more than this is a wrong command."""

_SYSTEM = frozenset(
    {"bin", "boot", "dev", "efi", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr"}
)
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "9p", "autofs", "afs"})
_LIVE = ("/dev", "/proc", "/sys")
_EXTRAS_ROOT = (",redirect_dir=on,volatile", ",volatile", "")
_EXTRAS_USER = (",userxattr,volatile", ",userxattr", "")


@dataclass(slots=True)
class _Layer:
    """One overlay to be: the real directory, held open so that later mounts cannot hide it."""

    root: str
    fd: int
    name: str
    """Of its directory in the scratch; made from the path, so that a second entry finds it again."""
    in_memory: bool
    edited: bool = False
    nested: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemoryWrites:
    """Where the writes below `root` lie while the namespace lives."""

    root: str
    upper: str


@dataclass(frozen=True, slots=True)
class Mounted:
    """What the namespace looks like now."""

    memory: tuple[MemoryWrites, ...]
    scratch: str
    """A path of the scratch directory that still works in here."""
    notes: tuple[str, ...]


def is_below(path: str, root: str) -> bool:
    """True where `path` is `root` or lies inside it; both absolute and normalised."""
    return root == "/" or path == root or path.startswith(root + "/")


def stray_roots(mounts: tuple[kernel.MountPoint, ...], top_level: list[str], wanted: tuple[str, ...]) -> list[str]:
    """Directories outside the run that become copy-on-write, so that a stray output path neither fails nor counts.

    A top-level directory without mounts inside; else the innermost mounts below it, since an unprivileged
    namespace cannot overlay a directory that has mounts inside. Network mounts that hold none of `wanted` are
    left alone (read-only): looking them up can hang on a server that is gone.
    """
    remote = {m.path for m in mounts if m.kind in _NETWORK and not any(is_below(w, m.path) for w in wanted)}
    paths = {m.path for m in mounts}
    roots = []
    for directory in top_level:
        inner = [path for path in paths if is_below(path, directory)]
        strict = [path for path in inner if path != directory]
        if not strict:
            roots.append(directory)
            continue
        roots += [path for path in inner if not any(is_below(o, path) for o in inner if o != path)]
    return sorted(root for root in roots if root not in remote)


def _top_level() -> list[str]:
    return [e.path for e in os.scandir("/") if e.name not in _SYSTEM and e.is_dir(follow_symlinks=False)]


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY)


def _by_fd(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _layers(entry: Entry, mounts: tuple[kernel.MountPoint, ...]) -> Iterator[_Layer]:
    strays = stray_roots(mounts, _top_level(), (*entry.roots, *entry.soft_roots))
    for root in sorted({*strays, *entry.roots, *entry.soft_roots}):
        try:
            fd = _open(root)
        except OSError:
            if root in entry.roots:
                raise
            continue
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
        layer = _Layer(root, fd, name, in_memory=is_below(entry.scratch, root))
        layer.edited = (Path(entry.scratch) / name / "layer").is_dir()
        for inner in mounts:
            if root in entry.roots and inner.path != root and is_below(inner.path, root):
                layer.nested.append((inner.path, os.open(inner.path, os.O_PATH)))
        yield layer


def _owner(layers: list[_Layer], path: str) -> _Layer | None:
    """The innermost overlay that `path` falls into."""
    inside = [layer for layer in layers if is_below(path, layer.root)]
    return max(inside, key=lambda layer: len(layer.root), default=None)


def _edit(entry: Entry, layers: list[_Layer], base: str, in_memory: bool) -> None:
    """Fill the edit layers that lie on disk, or those in memory; on disk they outlive the first entry."""
    if entry.again and not in_memory:
        return
    files = (pair for source, destination in entry.merge for pair in files_of(source, destination))
    for source, destination in (*files, *entry.place):
        layer = _owner(layers, destination)
        if layer is None:
            raise OSError(f"{destination} lies in no copy-on-write directory")
        if layer.in_memory is in_memory:
            layer.edited = True
            edits = Path(base) / layer.name / "layer"
            edits.mkdir(parents=True, exist_ok=True)
            put(layer.root, edits, source, destination)


def _live_again(mounts: tuple[kernel.MountPoint, ...]) -> None:
    """Devices, /proc, /sys and shared memory stay as they were."""
    for point in mounts:
        if not point.readonly and any(is_below(point.path, live) for live in _LIVE):
            with contextlib.suppress(OSError):
                kernel.set_readonly(point.path, False)


def _fresh(stem: str) -> str:
    """A new directory: overlayfs refuses a work directory that a volatile mount has used."""
    number = next(n for n in itertools.count() if not Path(f"{stem}{n}").exists())
    Path(f"{stem}{number}").mkdir()
    return f"{stem}{number}"


def _mount_overlay(entry: Entry, layer: _Layer, home: str, edits: str) -> None:
    """Mount over the real path; OSError of the last attempt where the kernel or the file system refuses."""
    upper = f"{home}/{layer.name}/upper"
    Path(upper).mkdir(parents=True, exist_ok=True)
    work = _fresh(f"{home}/{layer.name}/work")
    Path(f"{home}/{layer.name}/root").write_text(layer.root)
    if layer.in_memory or not entry.again:
        mirror(_by_fd(layer.fd), upper)
    lower = _by_fd(layer.fd)
    if layer.edited:
        lower = f"{edits}/{layer.name}/layer:{lower}"
    extras = _EXTRAS_USER if entry.user_namespace else _EXTRAS_ROOT
    for extra in extras:
        try:
            data = f"lowerdir={lower},upperdir={upper},workdir={work}{extra}"
            kernel.mount("overlay", layer.root, "overlay", 0, data)
            return
        except OSError:
            if extra == extras[-1]:
                raise


def _cover(entry: Entry, layer: _Layer, disk: str, memory: str) -> tuple[MemoryWrites | None, str]:
    """One overlay, in memory where disk is refused; (where its writes lie if in memory, a note)."""
    note = ""
    edits = memory if layer.in_memory else disk
    if not layer.in_memory:
        try:
            _mount_overlay(entry, layer, disk, edits)
        except OSError as error:
            layer.in_memory = True
            note = f"{layer.root}: writes are kept in memory ({error})"
    try:
        if layer.in_memory:
            _mount_overlay(entry, layer, memory, edits)
    except OSError as error:
        if layer.root in entry.roots:
            raise
        return None, f"{layer.root}: read-only ({error})"
    for path, fd in layer.nested:
        kernel.mount(_by_fd(fd), path, "", kernel.MS_BIND)
    writes = MemoryWrites(layer.root, f"{memory}/{layer.name}/upper") if layer.in_memory else None
    return writes, note


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(total * MEMORY_FRACTION, MEMORY_CEILING_BYTES))


def _homes(scratch: str) -> tuple[str, str]:
    """(writable path of the scratch on disk, path of a memory file system), both immune to later mounts."""
    kernel.mount(scratch, scratch, "", kernel.MS_BIND)
    kernel.set_readonly(scratch, False)
    memory = Path(scratch) / "memory"
    memory.mkdir(exist_ok=True)
    disk = _by_fd(_open(scratch))
    kernel.mount("tmpfs", str(memory), "tmpfs", kernel.MS_NODEV, f"size={_memory_bytes()},mode=0700")
    return disk, _by_fd(_open(str(memory)))


def _take_away(entry: Entry, layers: list[_Layer]) -> None:
    """Everything that must not shine through; a second entry finds that done, but for what lay in memory."""

    def is_due(path: str) -> bool:
        owner = _owner(layers, path)
        return not entry.again or (owner is not None and owner.in_memory)

    for source, destination in entry.place:
        if is_due(destination):
            remove_extras(Path(source), Path(destination))
    for path in filter(is_due, entry.hide):
        clear(Path(path))


def build(entry: Entry, report: Callable[[str], None]) -> Mounted:
    """Turn this process's private mount namespace into the view that `entry` describes.

    `report` hears what is being done, for a message where it fails. OSError where the kernel refuses.
    """
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    mounts = kernel.mount_points()
    report("opening the directories")
    layers = list(_layers(entry, mounts))
    trial, pins = _open(entry.directory), [(path, _open(path)) for path in entry.readonly]
    through = [(path, _open(path)) for path in entry.through]
    report("laying out the files of the trial")
    _edit(entry, layers, entry.scratch, in_memory=False)
    report("making the mounts read-only")
    kernel.set_readonly("/", True, recursive=True)
    _live_again(mounts)
    disk, memory = _homes(entry.scratch)
    _edit(entry, layers, memory, in_memory=True)
    report("mounting the overlays")
    covered = [_cover(entry, layer, disk, memory) for layer in layers]
    for path, fd in (*through, (entry.directory, trial)):
        kernel.mount(_by_fd(fd), path, "", kernel.MS_BIND)
        kernel.set_readonly(path, False)
    for path, fd in pins:
        kernel.mount(_by_fd(fd), path, "", kernel.MS_BIND)
    if is_below(entry.scratch, entry.directory):
        flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", entry.scratch, "tmpfs", flags, "size=4k,mode=0500")
    report("hiding what the trial must not see")
    _take_away(entry, layers)
    return Mounted(
        tuple(writes for writes, _ in covered if writes is not None),
        disk,
        tuple(note for _, note in covered if note),
    )
