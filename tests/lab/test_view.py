"""Can a trial hurt the run? A script that tries everything, under every guard."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import spike
from spike.domain.errors import SpikeError
from spike.domain.run import Run
from spike.lab.guards import choice
from spike.lab.guards.choice import Guard, Mechanism, choose_guard, mechanisms
from spike.lab.runner import TrialRequest, run_trial
from spike.lab.tree_state import tree_state

pytestmark = pytest.mark.process

VANDAL = """\
import json, os, shutil, subprocess, sys

RUN, ELSEWHERE, PINNED, OUT = {run!r}, {elsewhere!r}, {pinned!r}, {out!r}
done = []


def attempt(name, act):
    try:
        act()
        done.append(name)
    except OSError as error:
        done.append(f"{{name}}: {{type(error).__name__}}")


def write(path, mode, text):
    with open(path, mode) as file:
        file.write(text)


attempt("append to the log", lambda: write(RUN + "/log.jsonl", "a", "more"))
attempt("overwrite the checkpoint", lambda: write(RUN + "/out/step-4.pt", "r+", "XXXX"))
attempt("truncate", lambda: os.truncate(RUN + "/out/step-8.pt", 1))
attempt("truncate by opening", lambda: os.close(os.open(RUN + "/out/step-8.pt", os.O_RDONLY | os.O_TRUNC)))
attempt("delete", lambda: os.remove(RUN + "/victim"))
attempt("rename", lambda: os.rename(RUN + "/renamed", RUN + "/out/renamed"))
attempt("replace", lambda: (write(RUN + "/tmp", "w", "new"), os.replace(RUN + "/tmp", RUN + "/config.json")))
attempt("chmod", lambda: os.chmod(RUN + "/config.json", 0o600))
attempt("utime", lambda: os.utime(RUN + "/config.json", (1, 1)))
attempt("link", lambda: os.link(RUN + "/config.json", RUN + "/hard"))
attempt("write through the link", lambda: write(RUN + "/hard", "w", "through"))
attempt("symlink", lambda: os.symlink("/nowhere", RUN + "/soft"))
attempt("make a directory", lambda: os.makedirs(RUN + "/out/new/deep"))
attempt("remove a tree", lambda: shutil.rmtree(RUN + "/tree"))
attempt("rename a directory", lambda: os.rename(RUN + "/out", RUN + "/moved"))
attempt("overwrite the pin", lambda: write(PINNED, "r+", "XXXX"))
attempt("write elsewhere", lambda: write(ELSEWHERE, "a", "more"))
if {native}:
    subprocess.run(["rm", "-rf", RUN + "/spare"], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["sh", "-c", "echo more >> " + "'" + RUN + "/log.jsonl'"], check=False, stderr=subprocess.DEVNULL)
write("relative.jsonl", "w", json.dumps(done))
"""


def furnish(directory: Path) -> None:
    """A run with something of everything."""
    for folder in ("out", "tree/inner", "spare"):
        (directory / folder).mkdir(parents=True)
    for name in ("log.jsonl", "out/step-4.pt", "out/step-8.pt", "victim", "renamed", "config.json", "tree/inner/f"):
        (directory / name).write_text(f"content of {name}\n" * 10)
    (directory / "spare" / "f").write_text("spare")
    (directory / "latest").symlink_to("out/step-8.pt")
    (directory / "config.json").chmod(0o644)


@pytest.mark.parametrize("guard", list(Guard))
@pytest.mark.parametrize("name", ["run", "r:u,n \\ é"])
def test_a_script_that_tries_everything_leaves_the_run_identical(
    guard: Guard,
    name: str,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPIKE_GUARD", guard)
    run = bare_run("")
    furnish(Path(run.directory))
    directory = tmp_path / name
    if name != "run":
        Path(run.directory).rename(directory)
        run = replace(run, directory=str(directory))
    request = request_for(run)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    script = VANDAL.format(
        run=run.directory,
        elsewhere=str(elsewhere) if guard is not Guard.AUDIT else run.directory + "/victim",
        pinned=request.pinned,
        out=request.directory,
        native=guard is not Guard.AUDIT,
    )
    (directory / "train.py").write_text(script)
    before, pinned = tree_state(directory), tree_state(Path(request.pinned).parent)
    found = run_trial(request)
    assert found.exit_code == 0, found.stderr_tail
    assert found.guard == guard
    assert tree_state(directory) == before
    assert tree_state(Path(request.pinned).parent) == pinned
    assert elsewhere.read_text() == "not ours"
    done = json.loads((Path(found.metrics_dir) / "relative.jsonl").read_text())
    refused = {line.split(":")[0] for line in done if ":" in line}
    if guard is Guard.OVERLAY:
        assert refused == {"overwrite the pin"}
    else:
        assert len(refused) >= 15
    assert not (Path(request.directory) / "view").exists()


@pytest.mark.usefixtures("overlay")
@pytest.mark.parametrize("pid_namespace", [True, False])
@pytest.mark.parametrize("user_namespace", [True, False])
def test_every_way_into_an_overlay_protects_the_run(
    user_namespace: bool,
    pid_namespace: bool,
    bare_run: Callable[..., Run],
    request_for: Callable[..., TrialRequest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if os.geteuid() != 0 and not user_namespace:
        pytest.skip("only root mounts without a user namespace")
    mechanism = Mechanism(Guard.OVERLAY, user_namespace, pid_namespace)
    monkeypatch.setattr(choice, "overlay_mechanism", lambda: (mechanism, ""))
    run = bare_run("")
    directory = Path(run.directory)
    furnish(directory)
    request = request_for(run)
    script = VANDAL.format(
        run=run.directory, elsewhere=str(tmp_path / "new"), pinned=request.pinned, out="", native=True
    )
    (directory / "train.py").write_text(script)
    before = tree_state(directory)
    found = run_trial(request)
    assert (found.guard, found.exit_code) == (Guard.OVERLAY, 0), found.stderr_tail
    assert tree_state(directory) == before
    assert not (tmp_path / "new").exists()
    done = json.loads((Path(found.metrics_dir) / "relative.jsonl").read_text())
    refused = {line.split(":")[0] for line in done if ":" in line}
    # without privileges the kernel moves no directory that it would have to copy; shutil.move and mv copy instead
    assert refused == {"overwrite the pin"} | ({"rename a directory"} if user_namespace else set())


def test_the_strongest_guard_that_this_kernel_allows_is_chosen() -> None:
    guards = [mechanism.guard for mechanism in mechanisms()]
    assert guards[0] == choose_guard()
    assert guards[-1] is Guard.AUDIT
    assert guards == sorted(guards, key=list(Guard).index)


def test_an_unknown_guard_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIKE_GUARD", "prayer")
    with pytest.raises(SpikeError, match="prayer") as caught:
        mechanisms()
    assert all(guard in caught.value.hint for guard in Guard)


@pytest.fixture
def overlay() -> None:
    if choose_guard() is not Guard.OVERLAY:
        pytest.skip("this kernel lets nobody mount overlays")


@pytest.mark.usefixtures("overlay")
def test_the_run_may_hold_its_own_case(bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]) -> None:
    run = bare_run("open('made.jsonl', 'w').write('{}')")
    request = replace(request_for(run), directory=run.directory + "/case/T001")
    found = run_trial(request)
    assert (found.guard, found.exit_code) == (Guard.OVERLAY, 0), found.stderr_tail
    assert (Path(found.metrics_dir) / "made.jsonl").read_text() == "{}"
    assert not (Path(run.directory) / "made.jsonl").exists()


@pytest.mark.usefixtures("overlay")
def test_code_above_the_run_and_outputs_beside_it_are_safe_too(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest], tmp_path: Path
) -> None:
    run = bare_run("")
    run = replace(run, code=str(tmp_path), cwd=str(tmp_path), launch="python3 lib/train.py {workdir}")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("VALUE = 1\n")
    (tmp_path / "lib" / "train.py").write_text(
        "import os, sys, helper\n"
        "assert os.getcwd() != sys.argv[1]\n"
        "open('beside.jsonl', 'w').write('beside')\n"
        "open(sys.argv[1] + '/inside.jsonl', 'w').write('inside')\n"
        "os.remove('lib/helper.py')\n"
    )
    before = tree_state(tmp_path / "lib")
    found = run_trial(request_for(run))
    assert found.exit_code == 0, found.stderr_tail
    metrics = Path(found.metrics_dir)
    assert (metrics / "inside.jsonl").read_text() == "inside"
    assert (metrics / "outside" / str(tmp_path).lstrip("/") / "beside.jsonl").read_text() == "beside"
    assert tree_state(tmp_path / "lib") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lib", "run", "run.spike"]


@pytest.mark.usefixtures("overlay")
def test_hidden_paths_are_absent_and_placed_ones_are_exactly_their_source(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest], tmp_path: Path
) -> None:
    run = bare_run("import json, os; json.dump(sorted(os.listdir('out/a')) + os.listdir('out'), open('x.jsonl','w'))")
    out = Path(run.directory) / "out"
    for name in ("a/stale", "a/same", "later/f"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("old")
    source = tmp_path / "source"
    source.mkdir()
    (source / "same").write_text("new")
    (source / "fresh").write_text("new")
    before = tree_state(out)
    request = request_for(run, hide=(str(out / "later"),), place=((str(source), str(out / "a")),))
    found = run_trial(request)
    seen = json.loads((Path(found.metrics_dir) / "x.jsonl").read_text())
    assert seen == ["fresh", "same", "a"]
    assert tree_state(out) == before
    assert (source / "same").read_text() == "new"


@pytest.mark.usefixtures("overlay")
def test_the_own_uid_is_kept(bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]) -> None:
    run = bare_run("import os; open('x.jsonl', 'w').write(f'{os.getuid()} {os.getgid()}')")
    found = run_trial(request_for(run))
    assert (Path(found.metrics_dir) / "x.jsonl").read_text() == f"{os.getuid()} {os.getgid()}"


NOBODY = 65534


def _python_for(user: int) -> str:
    """A Python that this user may run and that is new enough for spike."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            said = subprocess.run(
                [candidate, "-c", "import sys; print(sys.version_info >= (3, 11))"], user=user, capture_output=True
            )
        except OSError:
            continue
        if said.stdout.strip() == b"True":
            return candidate
    pytest.skip("no Python 3.11 or newer that another user may run")


@pytest.fixture
def shared_place() -> Iterator[Path]:
    """A directory that every user may enter and write to."""
    place = Path(tempfile.mkdtemp(prefix="spike-test-", dir="/var/tmp"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


def test_a_user_without_privileges_gets_the_overlay_and_keeps_the_own_uid(shared_place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = _python_for(NOBODY)
    run = shared_place / "run"
    run.mkdir()
    furnish(run)
    (run / "log.jsonl").write_text("begun\n")
    (run / "train.py").write_text(
        "import os\n"
        "open('log.jsonl', 'a').write('more')\n"
        "os.rename('renamed', 'out/renamed'); os.remove('victim'); os.chmod('config.json', 0o600)\n"
        "open('x.jsonl', 'w').write(f'{os.getuid()} {os.stat(\"log.jsonl\").st_uid}')\n"
    )
    for path in (run, *run.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = tree_state(run)
    driver = shared_place / "driver.py"
    driver.write_text(
        "from spike.domain.run import Run\nfrom spike.domain.trial import TrialSpec\n"
        "from spike.lab.runner import TrialRequest, run_trial\n"
        f"run = Run(directory={str(run)!r}, launch={python!r} + ' train.py')\n"
        f"found = run_trial(TrialRequest(run, TrialSpec('T', '', '', 0, 1), {str(shared_place / 'trial')!r}, '', ()))\n"
        "print(found.guard, found.exit_code, found.stderr_tail)\n"
    )
    source = Path(spike.__file__).parents[1]
    environment = {"PYTHONPATH": str(source), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, str(driver)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.stdout.startswith((Guard.LANDLOCK, Guard.AUDIT)):
        pytest.skip("this kernel lets only root mount overlays")
    assert done.stdout.strip() == "overlay 0", done.stdout + done.stderr
    metrics = shared_place / "trial" / "metrics"
    assert (metrics / "x.jsonl").read_text() == f"{NOBODY} {NOBODY}"
    assert (metrics / "log.jsonl").read_text() == "more"
    assert tree_state(run) == before
    assert sorted(path.name for path in shared_place.iterdir()) == ["driver.py", "run", "trial"]


@pytest.mark.usefixtures("overlay")
def test_no_mount_and_no_scratch_survives(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest], tmp_path: Path
) -> None:
    request = request_for(bare_run("pass"))
    run_trial(request)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert subprocess.run(["find", request.directory, "-name", "view"], capture_output=True, check=True).stdout == b""
