"""What does a column mean? The names that stacks give to a signal, mapped to the one canonical name.

Held-out losses never become the training loss. A column that is none of these keeps its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from spike.domain import signals as s

STEP_NAMES = (
    "global_step",
    "trainer_global_step",
    "train_global_step",
    "step",
    "iteration",
    "iter",
    "iter_num",
    "num_updates",
    "optimizer_step",
    "train_step",
    "_step",
    "it",
    "update",
    "batch_idx",
)
"""Normalised names of the step column, best first; W&B's own `_step` counts log calls, so it comes late."""

RANK_NAMES = ("rank", "global_rank", "_rank", "dp_rank", "process_index", "worker")

_ALIASES: dict[str, tuple[str, ...]] = {
    s.LOSS: (
        "loss",
        "train_loss",
        "training_loss",
        "lm_loss",
        "train_ce_loss",
        "ce_loss",
        "cross_entropy_loss",
        "train_cross_entropy_loss",
        "train_crossentropyloss",
        "loss_metrics_global_avg_loss",
        "global_avg_loss",
        "lm_loss_training",
        "train_lm_loss",
        "train_loss_step",
        "loss_step",
        "train_loss_total",
        "loss_train_total",
        "train_lm_loss_value",
        "loss_train",
        "train",
        "losses_train",
        "train_batch_loss",
        "loss_total",
        "total_loss",
        "train_total_loss",
        "avg_loss",
        "average_loss",
        "mean_loss",
        "nll_loss",
        "nll",
        "ce",
        "reduced_train_loss",
        "batch_loss",
        "train_inner_loss",
        "lm_loss_value",
    ),
    s.GRAD_NORM: (
        "grad_norm",
        "gradient_norm",
        "gnorm",
        "gradnorm",
        "grad_norm_total",
        "total_grad_norm",
        "optim_total_grad_norm",
        "global_grad_norm",
        "grad_2.0_norm_total",
        "grad_2_norm_total",
        "grad_l2_norm",
        "l2_norm_grad_global",
        "grad_norm_global",
        "gradient_l2_norm",
        "train_grad_norm",
        "train_gnorm",
        "train_gradient_norm",
        "train_inner_gnorm",
        "optim_grad_norm",
        "norm_grad",
        "norm",
        "pre_clip_grad_norm",
        "grad_norm_before_clip",
    ),
    s.LEARNING_RATE: (
        "lr",
        "learning_rate",
        "learningrate",
        "lr_group0",
        "lr_pg1",
        "optim_lr",
        "optim_lr_group_0",
        "optim_learning_rate_group0",
        "optim_learning_rate",
        "train_lr",
        "train_learning_rate",
        "lr_0",
        "current_lr",
        "train_inner_lr",
        "lr_adamw",
        "lr_adam",
        "lr_adamw_0",
    ),
    s.LOSS_SCALE: (
        "loss_scale",
        "scale",
        "scaler_scale",
        "grad_scale",
        "amp_scale",
        "loss_scaler",
        "train_loss_scale",
        "overflow_loss_scale",
    ),
    s.SKIPPED: (
        "overflow",
        "skipped",
        "number_of_skipped_iterations",
        "optim_step_skipped",
        "step_skipped",
        "skipped_steps",
        "found_inf",
        "skipped_iterations",
    ),
    s.TOKENS: (
        "tokens",
        "consumed_tokens",
        "n_tokens_seen",
        "num_input_tokens_seen",
        "tokens_seen",
        "total_tokens",
        "throughput_total_tokens",
        "ntokens_seen",
    ),
    s.THROUGHPUT: ("throughput", "tps", "tokens_per_second", "throughput_tps", "tokens_per_sec", "tok_s", "wps"),
    s.UPDATE_NORM: ("update_norm", "update_l2", "optim_update_norm"),
    s.PARAM_NORM: ("param_norm", "params_norm", "weight_norm", "optim_param_norm", "parameter_norm"),
    s.HELD_OUT_LOSS: (
        "eval_loss",
        "val_loss",
        "valid_loss",
        "validation_loss",
        "dev_loss",
        "test_loss",
        "eval_ce_loss",
        "val_lm_loss",
        "lm_loss_validation",
        "valid_nll_loss",
        "val",
        "eval",
        "val_loss_epoch",
        "valid_inner_loss",
        "validation_metrics_loss",
        "validation_metrics_global_avg_loss",
        "loss_val",
        "loss_eval",
        "loss_valid",
    ),
}

_RANKED = {alias: (canonical, place) for canonical, names in _ALIASES.items() for place, alias in enumerate(names)}
_HELD_OUT = re.compile(r"(^|_)(eval|val|valid|validation|test|dev|holdout|held_out)(_|$)")
_LOSS_LIKE = re.compile(r"(^|_)(loss|nll)(_|$)")

KNOWN = (s.LOSS, s.GRAD_NORM, s.LEARNING_RATE, s.LOSS_SCALE, s.HELD_OUT_LOSS, s.SKIPPED)
"""Signals that make a file a metric file."""


@cache
def normalise(name: str) -> str:
    """Lower case, separators to one underscore: "train/CE loss" -> "train_ce_loss"."""
    return re.sub(r"[^a-z0-9.]+", "_", name.strip().lower().replace("(", " ").replace(")", " ")).strip("_")


def is_held_out(name: str) -> bool:
    """Whether a column's name says that it was measured on held-out data."""
    return _HELD_OUT.search(normalise(name)) is not None


def canonical(name: str) -> tuple[str, int] | None:
    """(canonical name, place in its list of aliases: lower is better), or None for a column of its own."""
    plain = normalise(name)
    return _RANKED.get(plain) or _RANKED.get(re.sub(r"^(metrics|training|log|perf|scalars?)_", "", plain))


def step_name(names: Iterable[str]) -> str | None:
    """The column that counts steps, or None."""
    by_plain: dict[str, str] = {}
    for name in names:
        by_plain.setdefault("_step" if name == "_step" else normalise(name), name)
    return next((by_plain[plain] for plain in STEP_NAMES if plain in by_plain), None)


def rank_name(names: Iterable[str]) -> str | None:
    """The column that says which rank wrote the row, or None."""
    by_plain = {name if name.startswith("_") else normalise(name): name for name in names}
    return next((by_plain[plain] for plain in RANK_NAMES if plain in by_plain), None)


def looks_like_metrics(names: Iterable[str]) -> bool:
    """Whether these columns belong to a metric file: one known signal is among them."""
    found = [canonical(name) for name in names]
    return any(hit is not None and hit[0] in KNOWN for hit in found)


def assign(names: Iterable[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Column -> signal name for one source.

    `chosen` (canonical -> column) is the operator's word and wins; otherwise the best alias present gets the
    canonical name and the others keep their own.
    """
    names = list(names)
    result = {name: name for name in names}
    best: dict[str, tuple[int, str]] = {}
    claimed = {column: signal for signal, column in chosen.items() if column in result}
    for name in names:
        hit = canonical(name)
        if hit is None or name in claimed or hit[0] in claimed.values():
            continue
        if hit[0] not in best or hit[1] < best[hit[0]][0]:
            best[hit[0]] = (hit[1], name)
    for signal, (_, name) in best.items():
        result[name] = signal
    result.update(claimed)
    winners = {*claimed, *(name for _, name in best.values())}
    for name in names:
        if name not in winners and name in _ALIASES:
            result[name] = f"{name} (column)"  # a loser must not pose as the canonical signal
    return result


def is_loss_like(name: str) -> bool:
    """Whether a column without a known name is still some training loss (MoE, MTP, auxiliary)."""
    return _LOSS_LIKE.search(normalise(name)) is not None and not is_held_out(name)
