"""Coverage-guided fuzzing of the target `wandb`; `_targets.py` says what that is."""

from _run import run

run("wandb")
