"""The probe: what did every optimizer step of this process really do, and what if one thing were different?

Runs inside the operator's training process: standard library and torch only, nothing of spike. It records, and
changes at most the one thing that its plan names. Never a collective, never the network, never an exception into
the training loop. `docs/FORMATS.md` is the contract of the plan it reads and the trace it writes.
"""
