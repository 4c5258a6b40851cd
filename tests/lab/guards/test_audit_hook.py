"""Does the hook refuse every Python way to write to the run, and does the lab notice the others?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.lab.guards.audit_hook import make_check, make_hook
from spike.lab.guards.choice import Guard
from spike.lab.runner import TrialRequest, run_trial
from spike.lab.tree_state import tree_state


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """(protected directory, an allowed one inside it)."""
    allowed = tmp_path / "run" / "case"
    allowed.mkdir(parents=True)
    (tmp_path / "run" / "f").write_text("x")
    return tmp_path / "run", allowed


def test_only_what_lies_below_the_run_is_refused(places: tuple[Path, Path], tmp_path: Path) -> None:
    run, allowed = places
    check = make_check([str(run)], [str(allowed)])
    for refused in (run / "f", run / "new", run, str(run / "x" / ".." / "f"), bytes(run / "f")):
        with pytest.raises(PermissionError):
            check(refused)
    for fine in (allowed / "new", tmp_path / "elsewhere", tmp_path / "run2", str(allowed)):
        check(fine)


def test_links_and_descriptors_do_not_lead_around_it(places: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = places
    check = make_check([str(run)], [])
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "file-link").symlink_to(run / "f")
    with pytest.raises(PermissionError):
        check(tmp_path / "link" / "new")
    with pytest.raises(PermissionError):
        check(tmp_path / "file-link", follow=True)
    check(tmp_path / "file-link")  # removing the link itself changes nothing in the run
    fd = os.open(run, os.O_RDONLY)
    try:
        with pytest.raises(PermissionError):
            check("new", fd)
        with pytest.raises(PermissionError):
            check(fd)
    finally:
        os.close(fd)


def test_reading_is_never_refused(places: tuple[Path, Path]) -> None:
    run, _ = places
    hook = make_hook(make_check([str(run)], []))
    hook("open", (str(run / "f"), "r", os.O_RDONLY | os.O_CLOEXEC))
    with pytest.raises(PermissionError):
        hook("open", (str(run / "f"), "a", os.O_WRONLY | os.O_APPEND))
    hook("os.listdir", (str(run),))


@pytest.mark.process
def test_it_chains_to_the_sitecustomize_that_it_hides(
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", Guard.AUDIT)
    own = tmp_path / "site"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.operators_own = 'kept'\n")
    monkeypatch.setenv("PYTHONPATH", str(own))
    found = run_trial(request_for(bare_run("print(operators_own)")))
    assert found.stderr_tail == "kept"


@pytest.mark.process
def test_a_program_that_is_not_python_is_found_out_afterwards(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", Guard.AUDIT)
    run = bare_run("")
    victim = Path(run.directory) / "victim"
    victim.write_text("x")
    (Path(run.directory) / "train.py").write_text(f"import subprocess; subprocess.run(['rm', {str(victim)!r}])")
    with pytest.raises(SpikeError, match="changed during trial T001-baseline") as caught:
        run_trial(request_for(run))
    assert caught.value.exit_code == 1


@pytest.mark.process
def test_a_mode_that_a_program_changed_under_landlock_is_found_out(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", Guard.LANDLOCK)
    run = bare_run("")
    victim = Path(run.directory) / "victim"
    victim.write_text("x")
    (Path(run.directory) / "train.py").write_text(
        f"import subprocess; subprocess.run(['chmod', '600', {str(victim)!r}])"
    )
    with pytest.raises(SpikeError, match=r"1 files of the run changed.*victim"):
        run_trial(request_for(run))


@pytest.mark.process
def test_the_native_writers_of_torch_and_safetensors_are_refused_too(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    run = tmp_path / "run"
    run.mkdir()
    (run / "old.pt").write_text("old")
    before = tree_state(run)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, safetensors.torch\n"
        "for path in sys.argv[1:]:\n"
        "    for save in (lambda: torch.save({'a': torch.ones(2)}, path + '.pt'),\n"
        "                 lambda: safetensors.torch.save_file({'a': torch.ones(2)}, path + '.safetensors')):\n"
        "        try:\n"
        "            save()\n"
        "            print('wrote')\n"
        "        except PermissionError:\n"
        "            print('refused')\n"
    )
    hook = tmp_path / "hook"
    from spike.lab.guards.audit_hook import PROTECTED, stage

    stage(hook)
    environment = {**os.environ, "PYTHONPATH": str(hook), PROTECTED: f'["{run}"]'}
    done = subprocess.run(
        [sys.executable, str(script), str(run / "old"), str(tmp_path / "free")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["refused", "refused", "wrote", "wrote"]
    assert tree_state(run) == before
