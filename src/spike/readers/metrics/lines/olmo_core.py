"""How does OLMo-core print a row? A header with the step, then one indented `key=value` a line."""

from __future__ import annotations

import re

from spike.readers.metrics.console_text import Anchor, Match

_HEAD = re.compile(r"\[step=(\d+)/(\d+)(?:,[^\]]*)?\]")
_PAIR = re.compile(r"^\s{2,}([A-Za-z][^=\n]*?)=([-+\w.,%]+)\s*$")


class OlmoCore:
    """OLMo-core's console logger."""

    name = "olmo-core"
    order = 15

    def match(self, text: str) -> Match | None:
        """The header, or one pair of the block that it opened."""
        head = _HEAD.search(text)
        if head is not None:
            return Match({}, int(head[1]), total_steps=int(head[2]))
        pair = _PAIR.match(text)
        return None if pair is None else Match({pair[1].strip(): pair[2]}, anchor=Anchor.CURRENT)

    def wants_more(self, text: str) -> bool:
        """Never: each pair has its own line."""
        return False


SHAPE = OlmoCore()
