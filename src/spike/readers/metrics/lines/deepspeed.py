"""How does DeepSpeed print a skipped step and its own counter line?"""

from __future__ import annotations

import re

from spike.readers.metrics.console_text import Anchor, Match

_OVERFLOW = re.compile(
    r"OVERFLOW!.*?Skipping step\.\s*Attempted loss scale:\s*([\d.e+]+)"
    r"(?:,?\s*reducing to\s*([\d.e+]+)|,?\s*but hysteresis)?",
    re.IGNORECASE,
)
_STEP = re.compile(r"\bstep=(\d+), skipped=(\d+), lr=\[([^\],]+)")


class DeepSpeed:
    """OVERFLOW lines carry no step: they are about the row that follows."""

    name = "deepspeed"
    order = 5

    def match(self, text: str) -> Match | None:
        """A skipped step with the loss scale after it, or the counter line (`skipped` there is a running total)."""
        overflow = _OVERFLOW.search(text) if "kipping" in text else None
        if overflow is not None:
            scale = (overflow[2] or overflow[1]).rstrip(".")
            return Match({"overflow": "1", "overflow loss scale": scale}, anchor=Anchor.NEXT)
        step = _STEP.search(text) if "skipped=" in text else None
        if step is not None:
            return Match({"skipped total": step[2], "lr": step[3]}, int(step[1]))
        return None

    def wants_more(self, text: str) -> bool:
        """Never."""
        return False


SHAPE = DeepSpeed()
