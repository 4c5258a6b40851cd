"""How does transformers' Trainer print a row? A Python dict, floats until version 4, strings since 5."""

from __future__ import annotations

import re

from spike.readers.metrics.columns import looks_like_metrics
from spike.readers.metrics.console_text import Anchor, Match

_DICT = re.compile(r"\{('[^'{}]+':[^{}]*)\}")
_PAIR = re.compile(r"'([^']+)':\s*(?:'([^']*)'|([^,'}]+))")
_SUMMARY = ("train_runtime", "total_flos")


class TrainerDict:
    """`{'loss': '4.16', 'grad_norm': '1.569', 'learning_rate': '5e-05', 'epoch': '0.03'}`: it has no step."""

    name = "hf-dict"
    order = 20

    def match(self, text: str) -> Match | None:
        """The pairs of the dict; the closing summary (its train_loss is a mean over the run) is no row."""
        found = _DICT.search(text)
        if found is None:
            return None
        pairs = {pair[1]: (pair[2] or pair[3] or "").strip() for pair in _PAIR.finditer(found[1])}
        if any(key in pairs for key in _SUMMARY) or not looks_like_metrics(pairs):
            return None
        for name in ("step", "global_step"):
            if pairs.get(name, "").isdigit():
                return Match(pairs, int(pairs.pop(name)))
        held_out = not any(key in pairs for key in ("loss", "grad_norm", "learning_rate"))
        return Match(pairs, None, Anchor.CURRENT if held_out else Anchor.ROW)

    def wants_more(self, text: str) -> bool:
        """Never: the dict is printed in one piece."""
        return False


SHAPE = TrainerDict()
