"""What exactly is started? The operator's launch line with its placeholders filled, as an argument list."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from spike.domain.errors import SpikeError

CHECKPOINT = "{checkpoint}"
_SHELL = re.compile(r"[|&;<>$`\n*?~!()#]")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")


def has_checkpoint(launch: str) -> bool:
    """True where the command is told which checkpoint to load; otherwise it looks for the newest itself."""
    return CHECKPOINT in launch


def needs_shell(launch: str) -> bool:
    """True where the line uses anything that only a shell understands."""
    return bool(_ASSIGNMENT.match(launch.lstrip())) or bool(_SHELL.search(_without_single_quotes(launch)))


def _without_single_quotes(launch: str) -> str:
    return re.sub(r"'[^']*'", "", launch)


def arguments(
    launch: str,
    *,
    checkpoint: str,
    step: int,
    workdir: str,
    extra: str = "",
    rewrite: Callable[[str], str] = lambda text: text,
) -> list[str]:
    """The command of a trial; {checkpoint}, {step} and {workdir} filled, `extra` (a knob's arguments) appended.

    An empty `checkpoint` starts from scratch: the words that hold {checkpoint} are left out together with the
    option before them. `rewrite` turns paths of the run into those of the view in everything the operator wrote.
    Raises SpikeError where the line cannot be split.
    """
    line = rewrite(f"{launch} {extra}".strip())
    values = {CHECKPOINT: checkpoint, "{step}": str(step), "{workdir}": workdir}
    if needs_shell(line):
        if not checkpoint:
            line = re.sub(r"(--?[\w-]+[ =])?[^\s'\"]*\{checkpoint\}\S*", "", line)
        for placeholder, value in values.items():
            line = line.replace(placeholder, shlex.quote(value))
        return ["bash", "-c", line]
    return [_filled(word, values) for word in _words(line, drop_checkpoint=not checkpoint)]


def _words(line: str, *, drop_checkpoint: bool) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise SpikeError(
            f"launch cannot be read as a command: {error}: {line}", hint="correct `launch:` in spike.yaml"
        ) from error
    if not words:
        raise SpikeError("there is no launch command", hint="write the training command as `launch:` in spike.yaml")
    if not drop_checkpoint:
        return words
    kept: list[str] = []
    for word in words:
        if CHECKPOINT not in word:
            kept.append(word)
        elif word == CHECKPOINT and kept and kept[-1].startswith("-") and "=" not in kept[-1]:
            kept.pop()
    return kept


def _filled(word: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word
