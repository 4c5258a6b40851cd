"""How can a process forbid itself to write anywhere but in a few places? Landlock, without privileges."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from spike.lab.guards import kernel

_SYS_CREATE, _SYS_ADD_RULE, _SYS_RESTRICT = 444, 445, 446
_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
_REMOVE_DIR = 1 << 4
_MAKE = sum(1 << bit for bit in range(6, 13))  # char device, directory, file, socket, fifo, block device, symlink
_REMOVE_FILE = 1 << 5
_REFER = 1 << 13  # ABI 2: rename and link between directories
_TRUNCATE = 1 << 14  # ABI 3


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock ABI; 0 where there is none or it is switched off."""
    found = kernel.syscall(_SYS_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_VERSION))
    return max(found, 0)


def _handled(abi: int) -> int:
    rights = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE
    if abi >= 2:
        rights |= _REFER
    if abi >= 3:
        rights |= _TRUNCATE
    return rights


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow `rights` on and below `path`; a path that is not there needs no permission."""
    try:
        fd = os.open(path, os.O_PATH)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _WRITE_FILE | _TRUNCATE
        rule = _PathBeneath(rights, fd)
        flags = ctypes.c_uint32(0)
        done = kernel.syscall(_SYS_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), flags)
        kernel.check(done, f"Landlock rule for {path}")
    finally:
        os.close(fd)


def restrict(writable: Iterable[str]) -> None:
    """From now on this process and its children write, create, remove and rename only below `writable`.

    Changing mode, owner or times of a file is not under Landlock's control in any ABI so far; the audit hook
    that runs along with it covers Python's calls, and a stat comparison afterwards reports the rest.
    OSError where the kernel has no Landlock.
    """
    rights = _handled(version())
    attributes = _Ruleset(rights)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    created = kernel.syscall(_SYS_CREATE, ctypes.byref(attributes), size, ctypes.c_uint32(0))
    ruleset = kernel.check(created, "Landlock ruleset")
    for path in writable:
        _allow(ruleset, path, rights)
    kernel.forbid_new_privileges()
    kernel.check(kernel.syscall(_SYS_RESTRICT, ruleset, ctypes.c_uint32(0)), "Landlock")
    os.close(ruleset)
