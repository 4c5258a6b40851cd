"""Coverage-guided fuzzing of the target `manifest`; `_targets.py` says what that is."""

from _run import run

run("manifest")
