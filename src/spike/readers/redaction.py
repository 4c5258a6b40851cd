"""What of the operator's description of a run may be written into a case?

The rule itself is pure and lives in `spike.domain.redaction`; this module applies it to structured facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spike.domain.redaction import REDACTED, is_secret_name, redact, redact_counted
from spike.domain.remote import is_url, safe_url
from spike.domain.run import Run

__all__ = ["REDACTED", "redact", "redact_command", "redact_counted", "redact_pairs", "redact_run"]


def redact_pairs(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Variables with the values of secret names, and secrets inside other values, replaced."""
    return tuple((name, REDACTED if is_secret_name(name) else redact(value)) for name, value in pairs)


def redact_command(arguments: Iterable[str]) -> tuple[str, ...]:
    """Arguments of a command line; the value after a secret option is an argument of its own."""
    safe: list[str] = []
    hide_next = False
    for argument in arguments:
        name = argument.lstrip("-")
        if hide_next and not argument.startswith("--"):
            safe.append(REDACTED)
            hide_next = False
            continue
        safe.append(redact(argument))
        hide_next = argument.startswith("-") and "=" not in argument and is_secret_name(name)
    return tuple(safe)


def redact_run(run: Run) -> Run:
    """The run's description without secrets; commands that start something read spike.yaml again instead."""
    return replace(
        run,
        launch=redact(run.launch),
        holdout=redact(run.holdout),
        checkpoints=safe_url(run.checkpoints) if is_url(run.checkpoints) else run.checkpoints,
        metrics=tuple(safe_url(name) if is_url(name) else name for name in run.metrics),
        env=redact_pairs(run.env),
        knobs=tuple((name, redact(value)) for name, value in run.knobs),
    )
