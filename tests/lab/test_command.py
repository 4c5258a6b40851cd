"""Is what is started exactly what the operator wrote, with the placeholders filled?"""

from __future__ import annotations

import pytest

from spike.domain.errors import SpikeError
from spike.lab.command import arguments, has_checkpoint, needs_shell
from spike.lab.copies import replace_path


def _filled(launch: str, checkpoint: str = "/c/step-4", extra: str = "") -> list[str]:
    return arguments(launch, checkpoint=checkpoint, step=4, workdir="/r un", extra=extra)


def test_placeholders_with_spaces_stay_one_word() -> None:
    assert _filled("python t.py --resume={checkpoint} --out {workdir} --from {step}") == [
        "python",
        "t.py",
        "--resume=/c/step-4",
        "--out",
        "/r un",
        "--from",
        "4",
    ]


def test_a_knob_is_appended() -> None:
    assert _filled("python t.py", extra="--lr 0.1") == ["python", "t.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("python t.py --resume {checkpoint} --x", ["python", "t.py", "--x"]),
        ("python t.py --resume={checkpoint} --x", ["python", "t.py", "--x"]),
        ("python t.py resume={checkpoint} --x", ["python", "t.py", "--x"]),
        ("python t.py {checkpoint}", ["python", "t.py"]),
        ("A=1 python t.py --resume {checkpoint} --x", ["bash", "-c", "A=1 python t.py  --x"]),
    ],
)
def test_from_scratch_the_checkpoint_and_its_option_are_left_out(launch: str, words: list[str]) -> None:
    assert _filled(launch, checkpoint="") == words


@pytest.mark.parametrize("launch", ["a | b", "a && b", "A=1 b", "a $HOME", "a *.py", "(a)", "a > b"])
def test_what_only_a_shell_understands_goes_to_a_shell(launch: str) -> None:
    assert needs_shell(launch)
    assert _filled(launch)[:2] == ["bash", "-c"]


@pytest.mark.parametrize("launch", ["torchrun --nproc-per-node 8 t.py --resume {checkpoint}", "a x=[1,2]", "a '$x|y'"])
def test_a_plain_line_goes_to_no_shell(launch: str) -> None:
    assert not needs_shell(launch)


def test_in_a_shell_line_a_value_is_quoted() -> None:
    assert _filled("a {workdir} | b") == ["bash", "-c", "a '/r un' | b"]


def test_a_line_that_cannot_be_split_is_named() -> None:
    with pytest.raises(SpikeError, match="launch cannot be read as a command"):
        _filled("python 't.py")


def test_the_placeholder_is_looked_for_in_the_line() -> None:
    assert has_checkpoint("a --resume {checkpoint}")
    assert not has_checkpoint("a --resume latest")


def test_paths_are_rewritten_only_where_they_are_whole() -> None:
    text = "/data/run/x --out=/data/run -I/data/run2 '/data/run' /old/data/run a:/data/run:b"
    assert replace_path(text, "/data/run", "/copy") == (
        "/copy/x --out=/copy -I/data/run2 '/copy' /old/data/run a:/copy:b"
    )
