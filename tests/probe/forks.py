"""Runs one script under many plans: torch is imported once, each plan gets a fork of its own."""

import atexit
import json
import os
import runpy
import sys
import traceback

import torch
import torch._dynamo  # optimizers import it at their first step: once for all forks


def child(name: str, plan: str) -> int:
    """One training process; answers its exit code."""
    for number, kind in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.environ["SPIKE_PROBE_PLAN"] = plan
    from spike_probe.bootstrap import activate

    activate()
    sys.argv = [spec["script"], *(word.replace("{name}", name) for word in spec["arguments"])]
    try:
        runpy.run_path(spec["script"], run_name="__main__")
    except SystemExit as request:
        return int(request.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


with open(sys.argv[1]) as spec_file:
    spec = json.load(spec_file)
codes = {}
for job, plan_path in spec["jobs"]:
    pid = os.fork()
    if pid == 0:
        code = child(job, plan_path)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the seconds that the interpreter takes to unload torch
    codes[job] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert torch.get_num_threads() == 1
print(json.dumps(codes))
