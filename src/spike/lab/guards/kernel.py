"""Which Linux calls does a guard need that Python has no name for? Thin, checked wrappers, nothing else."""

from __future__ import annotations

import ctypes
import os
import signal
from dataclasses import dataclass

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_MOUNT_ATTR_RDONLY = 0x1
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_SYS_MOUNT_SETATTR = 442  # one number on every architecture that Linux numbers jointly (since 5.12)
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAP_SYS_MODULE, _CAP_SYS_ADMIN, _CAP_SYS_BOOT = 16, 21, 22

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def check(result: int, what: str) -> int:
    """`result`, or OSError with the C library's errno and `what` in the message."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """A raw system call; negative results are left to `check`."""
    return int(_libc.syscall(ctypes.c_long(number), *arguments))


def unshare(flags: int) -> None:
    """Leave the shared namespaces named by `flags`."""
    check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """mount(2) of `source` on `target`; OSError names the target."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(data) if data else None,
    )
    check(result, f"mount {kind or 'bind'} on {target}")


def set_readonly(path: str, readonly: bool, *, recursive: bool = False) -> None:
    """Make the mount at `path` read-only or writable, without looking up the mounts below it."""
    attributes = _MountAttributes()
    if readonly:
        attributes.attr_set = _MOUNT_ATTR_RDONLY
    else:
        attributes.attr_clr = _MOUNT_ATTR_RDONLY
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    name = ctypes.c_char_p(os.fsencode(path))
    result = syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, name, flags, ctypes.byref(attributes), size)
    check(result, f"mount_setattr {path}")


def prctl(option: int, value: int, what: str) -> None:
    """prctl(2) with one argument."""
    zero = ctypes.c_ulong(0)
    check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), what)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask for `number` when the parent ends; exits at once where it is gone already.

    A parent outside this PID namespace shows as 0. Changing credentials forgets the request, so it is made
    after the namespaces are entered.
    """
    prctl(_PR_SET_PDEATHSIG, int(number), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Grandchildren whose parent ends become children of this process."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def forbid_new_privileges() -> None:
    """No later exec may gain privileges; Landlock asks for it."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def give_up_mounting() -> None:
    """Take away, for good, what could undo the mounts. A user other than root loses all at the next exec."""
    for capability in (_CAP_SYS_ADMIN, _CAP_SYS_MODULE, _CAP_SYS_BOOT):
        prctl(_PR_CAPBSET_DROP, capability, "PR_CAPBSET_DROP")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One line of /proc/self/mountinfo."""

    path: str
    kind: str
    readonly: bool


def mount_points() -> tuple[MountPoint, ...]:
    """What is mounted in this namespace, in the order of mounting."""
    found = []
    with open("/proc/self/mountinfo", "rb") as lines:  # noqa: PTH123 - bytes of the kernel, no path logic
        for line in lines:
            fields = line.split()
            rest = fields[fields.index(b"-") + 1 :]
            path = fields[4].decode("unicode_escape").encode("latin-1")
            options = fields[5].split(b",")
            found.append(MountPoint(os.fsdecode(path), rest[0].decode(), b"ro" in options))
    return tuple(found)
