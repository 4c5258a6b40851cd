"""Coverage-guided fuzzing of the target `hardware`; `_targets.py` says what that is."""

from _run import run

run("hardware")
