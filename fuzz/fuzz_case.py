"""Coverage-guided fuzzing of the target `case`; `_targets.py` says what that is."""

from _run import run

run("case")
