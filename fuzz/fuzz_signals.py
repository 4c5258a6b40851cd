"""Coverage-guided fuzzing of the target `signals`; `_targets.py` says what that is."""

from _run import run

run("signals")
