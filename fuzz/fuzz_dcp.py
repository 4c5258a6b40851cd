"""Coverage-guided fuzzing of the target `dcp`; `_targets.py` says what that is."""

from _run import run

run("dcp")
