"""Coverage-guided fuzzing of the target `signature`; `_targets.py` says what that is."""

from _run import run

run("signature")
