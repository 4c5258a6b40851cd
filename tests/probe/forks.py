"""Runs one script under many plans: torch is imported once, each plan gets a fork of its own."""

import json
import os
import runpy
import sys

import torch
import torch._dynamo  # optimizers import it at their first step: once for all forks

with open(sys.argv[1]) as spec_file:
    spec = json.load(spec_file)
codes = {}
for name, plan in spec["jobs"]:
    child = os.fork()
    if child == 0:
        for number, kind in ((1, "stdout"), (2, "stderr")):
            target = os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(target, number)
        os.environ["SPIKE_PROBE_PLAN"] = plan
        from spike_probe.bootstrap import activate

        activate()
        sys.argv = [spec["script"], *(word.replace("{name}", name) for word in spec["arguments"])]
        runpy.run_path(spec["script"], run_name="__main__")
        sys.exit(0)
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert torch.get_num_threads() == 1
print(json.dumps(codes))
