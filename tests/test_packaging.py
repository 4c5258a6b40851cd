"""Are playbooks, runbook and fixtures found from a checkout, an editable install and a wheel?"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOOK = (
    "from pathlib import Path; from spike.knowledge.shipped import shipped_directory as d; import spike;"
    "print(Path(spike.__file__).parent);"
    "kinds = (('playbooks', '*.yaml'), ('runbook', '*.md'), ('fixtures', 'truth.yaml'));"
    "print(*(len(list(d(n).rglob(p))) for n, p in kinds))"
)


def look(source: Path, cwd: Path) -> tuple[Path, list[int]]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=cwd,
        env={"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    place, counts = done.stdout.splitlines()
    return Path(place), [int(n) for n in counts.split()]


def counts_of_checkout() -> list[int]:
    return [
        len(list((ROOT / name).rglob(pattern)))
        for name, pattern in (("playbooks", "*.yaml"), ("runbook", "*.md"), ("fixtures", "truth.yaml"))
    ]


def test_a_checkout_finds_its_own(tmp_path: Path) -> None:
    place, counts = look(ROOT / "src", tmp_path)
    assert place == ROOT / "src/spike"
    assert counts == counts_of_checkout()
    assert min(counts) >= 8


def test_an_editable_install_finds_the_checkouts(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=tmp_path, capture_output=True, text=True, check=True)
    place, counts = done.stdout.splitlines()
    assert Path(place).is_relative_to(ROOT), "the tests run against an editable install of this checkout"
    assert [int(n) for n in counts.split()] == counts_of_checkout()


@pytest.mark.process
def test_a_wheel_carries_everything_and_finds_it(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "unpacked")
    assert not [n for n in names if n.startswith("tests/") or "__pycache__" in n or n.endswith(".pt")]
    place, counts = look(tmp_path / "unpacked", tmp_path)
    assert place == tmp_path / "unpacked/spike"
    assert counts == counts_of_checkout()
    assert any(n.startswith("spike_probe/") for n in names)
    assert any(n.endswith("entry_points.txt") for n in names)
