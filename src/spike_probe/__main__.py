"""How is a script run under the probe explicitly? `python -m spike_probe train.py ...` or `-m package.module ...`."""

from __future__ import annotations

import os
import runpy
import sys

from spike_probe.bootstrap import activate


def main(argv: list[str]) -> int:
    """Run the script or module that `argv` names, as `python` would."""
    if not argv or (argv[0] == "-m" and len(argv) < 2):
        sys.stderr.write("usage: python -m spike_probe [-m] SCRIPT [ARGUMENTS]\n")
        return 2
    activate()
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
