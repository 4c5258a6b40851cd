"""How does the operator's own command learn of an incident? It is started beside the watch, and its end is told.

It gets the JSON on standard input and in `SPIKE_INCIDENT`, and may take as long as it wants: paging somebody must not
stop the watch.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VARIABLE = "SPIKE_INCIDENT"
MAX_VARIABLE_BYTES = 100_000
"""Linux refuses a longer environment string than 128 KiB; then the incidents in it are without their details."""
LAST_WAIT_S = 60.0
"""How long a command that still runs is waited for when the watch ends."""


@dataclass(slots=True)
class IncidentCommand:
    """One shell command, run for every new incident."""

    command: str
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, payload: Mapping[str, Any]) -> str:
        """Run it with this answer; says why where it cannot be started."""
        text = json.dumps(payload, allow_nan=False)
        environment = {**os.environ, VARIABLE: _short(payload, text)}
        with tempfile.TemporaryFile() as stream:
            stream.write(text.encode())
            stream.seek(0)
            try:
                self._running.append(subprocess.Popen(self.command, shell=True, stdin=stream, env=environment))
            except OSError as error:
                return f"--on-incident could not be started: {error.strerror or error}: {self.command}"
        return ""

    def ended(self) -> list[str]:
        """What has failed since the last call."""
        done = [one for one in self._running if one.poll() is not None]
        self._running = [one for one in self._running if one.returncode is None]
        return [
            f"--on-incident ended with exit {one.returncode}: {self.command}" for one in done if one.returncode != 0
        ]

    def close(self) -> list[str]:
        """Wait for what still runs; says what failed, and what was left running."""
        for one in self._running:
            try:
                one.wait(LAST_WAIT_S)
            except subprocess.TimeoutExpired:
                return [*self.ended(), f"--on-incident still runs (pid {one.pid}): {self.command}"]
        return self.ended()


def _short(payload: Mapping[str, Any], text: str) -> str:
    if len(text) <= MAX_VARIABLE_BYTES:
        return text
    brief = [{k: v for k, v in i.items() if k not in ("signatures", "hints")} for i in payload["incidents"][:100]]
    return json.dumps({**payload, "incidents": brief, "sources": []}, allow_nan=False)
