"""What do the checks and trials know? Named facts, which playbooks refer to by name.

A fact's name and values are listed in `VOCABULARY`; the lint of playbooks refuses others. Adding a fact means
a line here and one place that measures it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spike.domain.verdict import Place

NOT_MEASURED = "not-measured"

VOCABULARY: dict[str, tuple[str, ...]] = {
    # signals
    "signal.non-finite": ("yes", "no"),  # the loss or grad norm at the onset is NaN or infinite
    "signal.persists": ("yes", "no"),  # still off the trend at the end of the record
    "lr.discontinuity": ("yes", "no"),  # the logged LR jumps at the onset, beyond its own trend
    "resume.at-onset": ("yes", "no"),  # the run was restarted right before the onset
    # checkpoints
    "checkpoint.integrity": ("whole", "damaged"),  # the last good one
    "checkpoint.finite": ("yes", "no"),
    "checkpoint.training": ("yes", "no"),  # weights move from one checkpoint to the next
    "checkpoint.bit-flip": ("yes", "no"),  # the first checkpoint after the onset holds an exponent jump
    "checkpoint.generation": ("one", "mixed"),  # weights and moments of the last good one belong to its step
    "checkpoint.tensors": ("ordinary", "suspicious"),  # tensors of it became zeros, subnormals or half precision
    # ranks and machines
    "ranks.agree": ("yes", "no"),
    "hardware.events": ("yes", "no"),
    # the zero-GPU difference between last good and incident
    "code.changed": ("yes", "no"),
    "config.changed": ("yes", "no"),
    "environment.changed": ("yes", "no"),
    # the suspect step, as the baseline trial saw it
    "batch.supervised": ("some", "none"),
    "precision.reduced": ("yes", "no"),
    "receipt.parameters": ("equal", "differs"),
    "receipt.moments": ("equal", "differs"),
    "clipping.lost": ("yes", "no"),  # an earlier configuration or commit clipped, the incident's did not
    # an earlier checkpoint's trajectory against the last good checkpoint's content
    "rebuild.parameters": ("equal", "differs"),
    "rebuild.moments": ("equal", "differs"),
    # what a changed commit changed, from the first difference of the two traces
    "commit.first-difference": (
        "data",
        "objective",
        "gradients",
        "clipping",
        "learning-rate",
        "precision",
        "update",
    ),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One answered question."""

    name: str
    value: str
    """One of VOCABULARY[name], or "not-measured"."""
    statement: str
    """What was found and where, as a sentence; for "not-measured" the reason."""
    evidence: tuple[str, ...] = ()
    """Ids: file paths in the case, trial ids, "journal:12"."""
    where: Place = field(default_factory=Place)
    step: int | None = None

    def __post_init__(self) -> None:
        if self.value != NOT_MEASURED and self.value not in VOCABULARY.get(self.name, ()):
            raise ValueError(f"fact {self.name!r} has no value {self.value!r}")


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `spike check` answers: facts that need no GPU, and the rows behind them."""

    facts: tuple[Fact, ...]
    tables: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()
    """(title, rows of text; the first row is the header): per-checkpoint and per-difference details."""

    def fact(self, name: str) -> Fact | None:
        """The fact of this name, if it was looked for."""
        return next((f for f in self.facts if f.name == name), None)
