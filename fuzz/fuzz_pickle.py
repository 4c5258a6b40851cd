"""Coverage-guided fuzzing of the target `pickle`; `_targets.py` says what that is."""

from _run import run

run("pickle")
