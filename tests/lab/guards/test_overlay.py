"""Which directories become copy-on-write beside the run?"""

from __future__ import annotations

from spike.lab.guards.kernel import MountPoint, mount_points
from spike.lab.guards.overlay import is_below, stray_roots


def _mounts(*pairs: tuple[str, str]) -> tuple[MountPoint, ...]:
    return tuple(MountPoint(path, kind, False) for path, kind in pairs)


def test_a_top_level_directory_without_mounts_is_covered_whole() -> None:
    assert stray_roots(_mounts(("/", "ext4")), ["/home", "/opt"], ()) == ["/home", "/opt"]


def test_of_a_directory_with_mounts_inside_the_innermost_are_covered() -> None:
    mounts = _mounts(("/", "ext4"), ("/data", "xfs"), ("/data/a", "xfs"), ("/data/a/b", "xfs"), ("/data/c", "xfs"))
    assert stray_roots(mounts, ["/data", "/tmp"], ()) == ["/data/a/b", "/data/c", "/tmp"]


def test_a_network_mount_is_touched_only_if_the_run_lies_in_it() -> None:
    mounts = _mounts(("/home", "nfs4"), ("/scratch", "lustre"))
    assert stray_roots(mounts, ["/home", "/scratch"], ("/home/me/run",)) == ["/home"]


def test_below_means_below_and_not_beside() -> None:
    assert is_below("/a/b", "/a")
    assert is_below("/a", "/a")
    assert is_below("/a", "/")
    assert not is_below("/ab", "/a")
    assert not is_below("/a", "/a/b")


def test_the_mounts_of_this_machine_are_read() -> None:
    found = {point.path: point for point in mount_points()}
    assert found["/proc"].kind == "proc"
    assert all(point.path.startswith("/") for point in found.values())
