"""Coverage-guided fuzzing of the target `safetensors`; `_targets.py` says what that is."""

from _run import run

run("safetensors")
