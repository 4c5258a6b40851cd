"""Does a trial that was sent elsewhere bring back what it would have brought back here?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spike.domain.errors import InputUnreadable, SpikeError
from spike.domain.run import Run
from spike.domain.trial import Factor, Intervention
from spike.lab.executors import Executor, LocalExecutor, SubmititExecutor
from spike.lab.requests import read_answer, read_request, write_request
from spike.lab.runner import TrialRequest


def test_a_request_survives_the_way_to_another_machine(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    change = Intervention("skip-batch", Factor.BATCH, steps=(5,), parameters=(("digests", ("a", "b")), ("lr", 0.5)))
    request = request_for(bare_run("pass"), "T002-skip-batch", change, hide=("/a",), place=(("/b", "/c"),))
    write_request(request)
    assert read_request(Path(request.directory)) == request


def test_an_answer_of_another_version_is_refused_by_name(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(bare_run("pass"))
    path = write_request(request)
    path.write_text(path.read_text().replace("spike.request/1", "spike.request/9"))
    with pytest.raises(InputUnreadable, match=r"spike\.request/9"):
        read_request(Path(request.directory))
    with pytest.raises(InputUnreadable, match=r"run\.json cannot be read"):
        read_answer(Path(request.directory))


@pytest.mark.process
@pytest.mark.parametrize("kind", ["local", "submitit"])
def test_executors_bring_back_the_trial(
    kind: str, bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest], tmp_path: Path
) -> None:
    executor: Executor = LocalExecutor()
    if kind == "submitit":
        pytest.importorskip("submitit")
        executor = SubmititExecutor(tmp_path / "jobs", cluster="local", parameters=(("timeout_min", 2),))
    run = bare_run("import sys; open('made.jsonl', 'w').write('{}'); sys.exit(3)")
    first, second = executor.run([request_for(run, "T001-a"), request_for(run, "T002-b")])
    assert (first.spec.id, first.ended, first.exit_code) == ("T001-a", "exited", 3)
    assert (second.spec.id, second.exit_code) == ("T002-b", 3)
    assert (Path(first.metrics_dir) / "made.jsonl").read_text() == "{}"
    assert not (Path(run.directory) / "made.jsonl").exists()


@pytest.mark.process
def test_a_trial_that_cannot_be_run_at_all_says_why(
    bare_run: Callable[..., Run], request_for: Callable[..., TrialRequest]
) -> None:
    request = request_for(replace(bare_run("pass"), launch=""))
    with pytest.raises(SpikeError, match=r"T001-baseline could not be run.*names no launch command") as caught:
        LocalExecutor().run([request])
    assert caught.value.exit_code == 2
    shutil.rmtree(request.directory)
