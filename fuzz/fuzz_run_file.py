"""Coverage-guided fuzzing of the target `run_file`; `_targets.py` says what that is."""

from _run import run

run("run_file")
