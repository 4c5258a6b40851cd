"""How does everybody else print a row? A step and `name value` pairs in any punctuation.

Covers nanoGPT (`iter 100: loss 2.3456, time 123.45ms`), modded-nanogpt (`step:919/6200 train_loss:5.0597`),
torchtitan (`step:  3  loss:    nan  grad_norm:   nan  memory: ...`), fairseq (`loss=3.2, gnorm=2.6`) and hand-written
loops (`step 100 | loss 2.31 | lr 1e-4`).
"""

from __future__ import annotations

import re

from spike.readers.metrics.columns import looks_like_metrics
from spike.readers.metrics.console_text import Match
from spike.readers.metrics.numbers import NUMBER

_STEP_WORD = r"global[_ ]?step|train(?:ing)?[_ ]?step|step|iter(?:ation)?|it|num_updates|update|batch(?:_idx|_id)?"
_STEP = re.compile(
    rf"(?:^|[\s|,;\[({{>/])(?P<held>validat\w*|val|eval\w*|test)?\s*(?:{_STEP_WORD})\s*[:=#]?\s*\[?\s*(?P<step>\d[\d,]*)"
    r"(?!\.\d|[\w%])(?:\s*/\s*(?P<total>\d+))?",
    re.IGNORECASE,
)
_BRACKET = re.compile(r"\[\s*(?P<step>\d+)\s*/\s*(?P<total>\d+)\s*\]")
_NAME = r"[A-Za-z_][\w./-]*(?:[ ][A-Za-z_][\w./-]*){0,3}"
_PAIR = re.compile(
    rf"(?P<name>{_NAME})\s*(?:[:=]\s*|\s)\[?(?P<value>{NUMBER})(?![\w])(?P<unit>%|ms|s\b)?", re.IGNORECASE
)
_UNIT = re.compile(
    r"(?:(?<=\d)|(?<=nan)|(?<=inf))(?:ms|s|us|GiB|MiB|GB|MB|%)(?=$|[\s,|)(;])|(?<=\d)/\d[\d,]*(?=$|[\s,|])",
    re.IGNORECASE,
)
_LEVEL = re.compile(r"\b(INFO|DEBUG|WARNING|ERROR)\b\s*[:-]?\s*")


class KeyValue:
    """A line with a step and at least one known signal."""

    name = "key-value"
    order = 90

    def match(self, text: str) -> Match | None:
        """All pairs behind the step (or on the line), named as printed."""
        if len(text) > 4000:
            return None
        body = _LEVEL.split(text)[-1]
        step = _STEP.search(body) or _BRACKET.search(body)
        if step is None:
            return None
        pairs = _pairs(body[: step.start()]) | _pairs(body[step.end() :])
        if not looks_like_metrics(pairs):
            return None
        held = step.groupdict().get("held")
        total = step.groupdict().get("total")
        number = int(step["step"].replace(",", ""))
        return Match(pairs, number, held_out=bool(held), total_steps=int(total) if total else None)

    def wants_more(self, text: str) -> bool:
        """Never: an unknown shape gives no sign of being wrapped."""
        return False


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for match in _PAIR.finditer(_UNIT.sub(" ", text)):
        name = match["name"].strip(" :-.")
        pairs.setdefault(name, match["value"].rstrip(","))
    return pairs


SHAPE = KeyValue()
