"""Coverage-guided fuzzing of the target `flight_recorder`; `_targets.py` says what that is."""

from _run import run

run("flight_recorder")
