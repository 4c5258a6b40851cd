"""What do the times of files prove about a save, and what do they leave open?"""

import os
import shutil
import time

import pytest
from tests.readers.checkpoints import stacks

from spike.domain.checkpoint import Integrity
from spike.readers.checkpoints import _times, inspect_checkpoint
from spike.readers.checkpoints._times import birth_ns, saved_over, written_apart

HOUR = 3600 * 10**9
SHORT = 50_000_000
"""Nanoseconds in place of the slack of two seconds, so that a test need not wait for it."""


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A filesystem that tells when a file was born, and a slack that a test can wait for."""
    (tmp_path / "probe").touch()
    if birth_ns(tmp_path / "probe") is None:
        pytest.skip("this filesystem does not tell when a file was born")
    monkeypatch.setattr(_times, "SLACK_NS", SHORT)


def wait():
    time.sleep(4 * SHORT / 1e9)


def saved(folder):
    """Two data files and the marker that the save writes last."""
    folder.mkdir()
    for name in ("a", "b", "marker"):
        (folder / name).write_text(name)
    return folder


def judged(folder):
    return saved_over(folder / "marker", [folder / "a", folder / "b"])


def test_a_save_that_came_to_its_end_says_nothing(quick, tmp_path):
    assert judged(saved(tmp_path / "s")) == (None, "")


def test_a_file_written_again_in_place_is_overwritten(quick, tmp_path):
    folder = saved(tmp_path / "s")
    wait()
    (folder / "b").write_text("again")
    damage, _ = judged(folder)
    assert damage.integrity is Integrity.OVERWRITTEN
    assert "b: written again after marker" in damage.message


def test_an_older_file_moved_in_afterwards_with_its_times_is_of_another_save(quick, tmp_path):
    older = saved(tmp_path / "older")
    wait()
    folder = saved(tmp_path / "s")
    wait()
    (folder / "a").unlink()
    shutil.copy2(older / "a", folder / "a")
    damage, _ = judged(folder)
    assert damage.integrity is Integrity.OVERWRITTEN
    assert "a: an older file that was put here after marker was written" in damage.message


@pytest.mark.parametrize("copy", [shutil.copy2, shutil.copyfile])
def test_a_whole_directory_copied_elsewhere_is_not_accused(copy, quick, tmp_path):
    folder = saved(tmp_path / "s")
    wait()
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("marker", "a", "b"):
        copy(folder / name, copied / name)
        wait()
    damage, note = judged(copied)
    assert damage is None
    assert ("copied without its times" in note) is (copy is shutil.copyfile)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_shard_put_into_a_real_save_is_named(quick, tmp_path):
    earlier, later = stacks.torchtitan(tmp_path)
    wait()
    (later / "__0_0.distcp").unlink()
    shutil.copy2(earlier / "__0_0.distcp", later / "__0_0.distcp")
    found = inspect_checkpoint(later)
    assert found.integrity is Integrity.OVERWRITTEN
    assert "__0_0.distcp: an older file that was put here" in found.reason


def test_files_of_one_save_may_lie_minutes_apart_and_not_an_hour(tmp_path):
    folder = saved(tmp_path / "s")
    files = sorted(folder.iterdir())
    now = time.time_ns()
    for seconds, is_apart in ((60, False), (599, False), (3600, True)):
        os.utime(folder / "b", ns=(now + seconds * 10**9,) * 2)
        for name in ("a", "marker"):
            os.utime(folder / name, ns=(now,) * 2)
        assert bool(written_apart(files)) is is_apart
    assert "b: written 60 minutes after" in written_apart(files)


def test_a_large_save_may_take_longer(tmp_path):
    folder = saved(tmp_path / "s")
    os.truncate(folder / "a", 100 << 30)  # 100 GiB at 20 MB/s are 85 minutes
    now = time.time_ns()
    os.utime(folder / "a", ns=(now,) * 2)
    os.utime(folder / "marker", ns=(now,) * 2)
    os.utime(folder / "b", ns=(now + HOUR,) * 2)
    assert written_apart(sorted(folder.iterdir())) == ""
    os.utime(folder / "b", ns=(now + 2 * HOUR,) * 2)
    assert written_apart(sorted(folder.iterdir()))
