"""What runs where a trial was sent? `python -m spike.lab.trial_main <trial directory>`: request in, answer out."""

from __future__ import annotations

import sys
from pathlib import Path

from spike.domain.errors import ExitCode, SpikeError
from spike.domain.trial import TrialRun
from spike.lab.requests import ANSWER, read_request, write_answer
from spike.lab.runner import Redact, run_trial


def run_directory(directory: Path, redact: Redact = str) -> TrialRun:
    """Run the request in this directory and write its answer; raises SpikeError where it cannot be run."""
    (directory / ANSWER).unlink(missing_ok=True)
    found = run_trial(read_request(directory), redact=redact)
    write_answer(found)
    return found


def main(arguments: list[str]) -> int:
    """Exit code of the process: 0 where the trial ran, however it ended; else the error's."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m spike.lab.trial_main <trial directory>\n")
        return int(ExitCode.USAGE)
    try:
        run_directory(Path(arguments[0]).resolve())
    except SpikeError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return int(error.exit_code)
    return int(ExitCode.PASSED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
