"""What could be wrong, and how would we know? A hypothesis, as `playbooks/<class>/<cause>.yaml` states it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from spike.domain.verdict import CauseClass

REPLAY = "replay"
"""The name under which `trials` states what the unchanged trial must show."""

Wanted: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""(fact name, values that fit), in the order of the file."""


class Expectation(StrEnum):
    """What a trial shows where the hypothesis is true."""

    REPRODUCED = "reproduced"
    ABSENT = "absent"
    ANY = "any"
    """The hypothesis survives either outcome."""


class Locality(StrEnum):
    """A kind of place that a cause can be narrowed down to."""

    SAMPLES = "samples"
    MODULE = "module"
    TENSOR = "tensor"
    RANK = "rank"
    COMMIT = "commit"
    CONFIG_KEY = "config-key"
    FILE = "file"
    CHECKPOINT = "checkpoint"


class Risk(StrEnum):
    """What a remedy can do to the run beyond its purpose."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The specific intervention that establishes the cause, and its controls."""

    trials: tuple[str, ...] = ()
    """Interventions that remove the signature by undoing this cause alone, all of them; () where facts do it."""
    placebo: str = ""
    """The same kind of change, not touching the cause: must leave the signature; "" where there is none."""
    reversal: str = ""
    """Brings the signature back into a healthy window; "" where that is not cheap."""
    facts: Wanted = ()
    """Facts that must have been measured with one of these values."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change to resume with."""

    do: str
    """What to do, as an order to the operator."""
    risk: Risk
    because: str
    """Why this takes the cause away; a remedy without a reason is refused."""
    change: str = ""
    """Intervention that tries it in the gate; "" where it acts outside a trial (replace the node)."""


@dataclass(frozen=True, slots=True)
class Playbook:
    """One hypothesis: a named cause inside one of the four classes."""

    id: str
    """"data/corrupt-batch": its path without suffix."""
    cause_class: CauseClass
    statement: str
    """The claim, as one sentence."""
    looks_like: tuple[str, ...]
    """What it looks like in signals and checks, in prose."""
    facts: Wanted
    """A measured fact with another value rejects the hypothesis; an unmeasured one does not."""
    supported_by: Wanted
    """Facts that raise it without deciding."""
    trials: tuple[tuple[str, Expectation], ...]
    """By intervention name, or `REPLAY`: what it would show."""
    confirm: tuple[Confirmation, ...]
    """Any one of them establishes the cause."""
    localise: tuple[Locality, ...]
    remedies: tuple[Remedy, ...]
    """Cheap and safe first."""
    gate: tuple[str, ...] = ()
    """Extra conditions that must hold before resuming after this cause."""
    sources: tuple[str, ...] = ()
    supporting_examples: tuple[str, ...] = ()
    """Fixture incidents whose cause this is."""
    refuting_examples: tuple[str, ...] = ()
    """Fixture incidents that look like it and are not."""
    file: str = ""
    """Where it was read from, for messages."""

    def expects(self, trial: str) -> Expectation:
        """What this trial would show; `ANY` where the playbook does not say."""
        return dict(self.trials).get(trial, Expectation.ANY)
