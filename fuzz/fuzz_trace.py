"""Coverage-guided fuzzing of the target `trace`; `_targets.py` says what that is."""

from _run import run

run("trace")
