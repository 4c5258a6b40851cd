"""What is different between the last good state and the incident? The cheapest bisect axis: it needs no GPU.

Every difference is listed; the order says which kind of change has caused loss spikes before. A name like
`learning_rate` counts more than `run_name`, code more than documentation, torch more than a plotting library.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class DifferenceKind(StrEnum):
    """Where a difference was found."""

    COMMIT = "commit"
    PATCH = "uncommitted change"
    CONFIG = "config"
    LAUNCH = "launch argument"
    PACKAGE = "package"
    VARIABLE = "environment variable"
    HOST = "machine"


class CommitLike(Protocol):
    """What is needed of a commit."""

    @property
    def commit(self) -> str:
        """Full hash."""

    @property
    def time(self) -> int:
        """Unix seconds."""

    @property
    def subject(self) -> str:
        """First line of the message."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that it touched."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same."""

    kind: DifferenceKind
    key: str
    """Config key, argument, package, variable, file or commit."""
    before: str
    after: str
    weight: float
    """How often this kind of change matters: 1 for what computes the update, 0 for names and paths."""
    commit: str = ""
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind is DifferenceKind.COMMIT:
            return f"commit {self.commit[:10]} ({self.after})"
        return f"{self.kind.value} {self.key}: {self.before or 'absent'} -> {self.after or 'absent'}"


_UPDATE = re.compile(
    r"(^|[._-])(lr|learning_rate|min_lr|max_lr|warm_?up\w*|(lr_)?decay\w*|betas?\d?|eps(ilon)?|momentum|nesterov|weight_decay|"
    r"(grad(ient)?_)?clip\w*|max_(grad_)?norm|optim\w*|scheduler?\w*|batch\w*|\w*batch_size|micro_batch\w*|accum\w*|"
    r"grad(ient)?_accum\w*|loss\w*|label_smoothing|z_loss|reduction|scale|loss_scale|anneal\w*)([._-]\w*)?$",
    re.I,
)
_COMPUTE = re.compile(
    r"(dtype|precision|fp16|bf16|fp8|tf32|amp|autocast|attn|attention|flash|sdpa|compile|fused|kernel|deterministic|"
    r"dropout|init\w*|hidden|layers?|heads?|width|embd|vocab|norm|rope|activation|qk|tie|experts?|moe|gain)",
    re.I,
)
_DATA = re.compile(
    r"(data|shard|tokenizer|seq(uence)?_?len|block(_size)?|context|order|shuffle|mask|pack|ignore|mix|corpus|"
    r"collat|sampler|num_workers|streaming|split|seed)",
    re.I,
)
_WORLD = re.compile(r"(world|nproc|nnodes|parallel|(^|[._-])(tp|pp|dp|cp|ep)([._-]|$)|zero|fsdp|ddp|bucket|rank)", re.I)
_LABEL = re.compile(
    r"(out(put)?(_dir)?$|dir$|path$|folder|(^|[._-])name|log(ging)?([._-]|$)|save|eval|project|wandb|tensorboard|mlflow|"
    r"(^|[._-])id$|time(stamp)?$|port|host|rdzv|master_|verbose|debug_?dir|report_to|push|hub|max_steps|epochs|keep|"
    r"commit$)",
    re.I,
)
_CORE_PACKAGES = re.compile(
    r"^(torch|numpy|triton|flash[-_]attn.*|transformer[-_]engine.*|apex|xformers|bitsandbytes|deepspeed|megatron.*|"
    r"accelerate|lightning|pytorch[-_]lightning|transformers|datasets|tokenizers|nvidia[-_].*|cuda.*|torchao|torchdata)$",
    re.I,
)
_CORE_VARIABLES = re.compile(r"^(CUDA|NCCL|TORCH|PYTORCH|NVIDIA|OMP|MKL|CUBLAS|TRITON|DS_|ACCELERATE|GLOO|NVTE)")
_DOCS = re.compile(r"(\.(md|rst|txt)$|^docs?/|^tests?/|^\.github/|LICENSE|\.gitignore$)", re.I)


def key_weight(key: str) -> float:
    """How likely a setting of this name changes the update: 1 (it is in the update rule) to 0.05 (a label)."""
    last = key.rpartition(".")[2]
    if _UPDATE.search(key):
        return 1.0
    if _LABEL.search(last):
        return 0.05
    for pattern, weight in ((_COMPUTE, 0.8), (_DATA, 0.8), (_WORLD, 0.7)):
        if pattern.search(last):
            return weight
    return 0.4


def mapping_differences(
    before: Iterable[tuple[str, str]], after: Iterable[tuple[str, str]], kind: DifferenceKind
) -> tuple[Difference, ...]:
    """Keys whose value is another one, appeared or went away, most relevant first."""
    old, new = dict(before), dict(after)
    found = [
        Difference(kind, key, old.get(key, ""), new.get(key, ""), _weight(kind, key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    return ranked(found)


def launch_differences(before: str | Sequence[str], after: str | Sequence[str]) -> tuple[Difference, ...]:
    """Arguments of two command lines that are not the same; their order does not count."""
    return mapping_differences(_arguments(before).items(), _arguments(after).items(), DifferenceKind.LAUNCH)


def commit_differences(commits: Iterable[CommitLike]) -> tuple[Difference, ...]:
    """Commits between the two states, those that touch code or configuration first."""
    found = []
    for commit in commits:
        relevant = [name for name in commit.files if not _DOCS.search(name)]
        weight = 0.9 if relevant else 0.05
        if not commit.files:
            weight = 0.3  # an empty list means that git could not tell
        found.append(
            Difference(
                DifferenceKind.COMMIT,
                relevant[0] if relevant else next(iter(commit.files), ""),
                "",
                commit.subject[:120],
                weight,
                commit.commit,
                tuple(relevant) or commit.files,
            )
        )
    return ranked(found)


def patch_differences(changed: Iterable[str]) -> tuple[Difference, ...]:
    """Tracked files with uncommitted changes."""
    found = [
        Difference(DifferenceKind.PATCH, name, "committed", "changed", 0.05 if _DOCS.search(name) else 0.7, "", (name,))
        for name in changed
    ]
    return ranked(found)


def ranked(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Most relevant first; equal ones by kind and key."""
    return tuple(sorted(differences, key=lambda d: (-d.weight, d.kind.value, d.key)))


def matters(difference: Difference) -> bool:
    """True where the difference could change what a step computes."""
    return difference.weight > 0.1


def _weight(kind: DifferenceKind, key: str) -> float:
    match kind:
        case DifferenceKind.CONFIG | DifferenceKind.LAUNCH:
            return key_weight(key.lstrip("-"))
        case DifferenceKind.PACKAGE:
            return 0.8 if _CORE_PACKAGES.match(key) else 0.2
        case DifferenceKind.VARIABLE:
            return 0.6 if _CORE_VARIABLES.match(key) else 0.1
        case DifferenceKind.HOST:
            return 0.5
        case DifferenceKind.COMMIT | DifferenceKind.PATCH:
            return 0.9


def _arguments(command: str | Sequence[str]) -> Mapping[str, str]:
    """Options with their values; positional words keep their place."""
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError:
        words = command.split() if isinstance(command, str) else list(command)
    found: dict[str, str] = {}
    at, position = 0, 0
    while at < len(words):
        word = words[at]
        if word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            if not equals and at + 1 < len(words) and not words[at + 1].startswith("--"):
                at += 1
                value = words[at]
            found[name] = value if value or equals else "set"
        else:
            found[f"word {position}"] = word
            position += 1
        at += 1
    return found
