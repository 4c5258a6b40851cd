"""Coverage-guided fuzzing of the target `torch_zip`; `_targets.py` says what that is."""

from _run import run

run("torch_zip")
