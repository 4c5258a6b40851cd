"""Coverage-guided fuzzing of the target `journal`; `_targets.py` says what that is."""

from _run import run

run("journal")
