"""Coverage-guided fuzzing of the target `tensorboard`; `_targets.py` says what that is."""

from _run import run

run("tensorboard")
