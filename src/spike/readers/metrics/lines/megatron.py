"""How does Megatron-LM (and Megatron-DeepSpeed) print a row? `iteration N/ M | key: value | ...`."""

from __future__ import annotations

import re
from functools import lru_cache

from spike.readers.metrics.console_text import Match

_HEAD = re.compile(r"iteration\s+(\d+)\s*/\s*(\d+)\s*\|")
_VALIDATION = re.compile(r"validation loss at (?:the end of training[^|]*|iteration (\d+)[^|]*)\|")


class Megatron:
    """Megatron's training_log line."""

    name = "megatron"
    order = 10

    def match(self, text: str) -> Match | None:
        """Every `key: value` between the bars; a loss that is not finite is simply not printed there."""
        head = _HEAD.search(text)
        if head is not None:
            return Match(_pairs(text[head.end() :]), int(head[1]), total_steps=int(head[2]))
        check = _VALIDATION.search(text)
        if check is not None and check[1] is not None:
            return Match(_pairs(text[check.end() :]), int(check[1]), held_out=True)
        return None

    def wants_more(self, text: str) -> bool:
        """A row always ends with a bar; one that does not was wrapped by a pager or a chronicle."""
        return not text.rstrip().endswith("|") and _HEAD.search(text) is not None


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split("|"):
        key, colon, value = part.rpartition(":")
        if colon and (name := _name(key)):
            pairs[name] = value.strip()
    return pairs


@lru_cache(maxsize=4096)
def _name(key: str) -> str:
    """The key with single spaces."""
    return " ".join(key.split())


SHAPE = Megatron()
