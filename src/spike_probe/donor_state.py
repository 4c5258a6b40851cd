"""How does recorded state get into the live model and optimizer, and is it really there afterwards?

Content of a `spike.donor/1` file is copied into the tensors that exist (no new parameters, no collective; of a
DTensor only this rank's shard), and read back: only bits that can be found in the live process count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Optional

import torch

from spike_probe.digests import local, tensor_digest
from spike_probe.fingerprint import moments_of
from spike_probe.intervention import Live

PREFIXES = ("module.", "_orig_mod.")


def load_donor(path: str) -> dict[str, Any]:
    """The donor file's content on the CPU; ValueError where it has another schema."""
    donor = torch.load(path, map_location="cpu", weights_only=True)
    if donor.get("schema") != "spike.donor/1":
        raise ValueError(f"{path} has schema {donor.get('schema')!r}, not 'spike.donor/1'")
    return donor  # type: ignore[no-any-return]


def combined_digest(tensors: Iterable[torch.Tensor]) -> str:
    """One digest over the digests of tensors, shortened for an `effect` line."""
    return hashlib.sha256("\n".join(tensor_digest(tensor) for tensor in tensors).encode()).hexdigest()[:16]


class Forced:
    """What forcing a donor's tensors upon live ones did."""

    def __init__(self) -> None:
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """(live tensor, what it must hold) of everything that was copied."""
        self.num_changed = 0
        self.missing: list[str] = []
        self.misfits: list[str] = []

    def put(self, name: str, live: torch.Tensor, donor: torch.Tensor) -> None:
        """Copy one tensor; a shape that does not fit is noted, not forced."""
        wanted = shard_of(live, donor)
        held = local(live.detach())
        if wanted is None or wanted.shape != held.shape:
            self.misfits.append(name)
            return
        wanted = wanted.to(held.device, held.dtype)
        self.num_changed += tensor_digest(held) != tensor_digest(wanted)
        with torch.no_grad():
            held.copy_(wanted)
        self.pairs.append((held, wanted))

    def text(self) -> str:
        """What was done, for an `effect` line."""
        parts = [f"{len(self.pairs)} tensors forced", f"{self.num_changed} of them changed"]
        parts += [f"{len(self.missing)} not in the donor ({self.missing[0]}, ...)"] if self.missing else []
        parts += [f"{len(self.misfits)} of another shape ({self.misfits[0]}, ...)"] if self.misfits else []
        return ", ".join(parts)

    def holds(self) -> bool:
        """True where nothing was left out and the live bits are the donor's."""
        same = all(tensor_digest(held) == tensor_digest(wanted) for held, wanted in self.pairs)
        return bool(self.pairs) and same and not self.missing and not self.misfits

    def is_in_place(self) -> bool:
        """True where moreover something is other than it was."""
        return bool(self.num_changed) and self.holds()


def force_parameters(live: Live, donor: dict[str, Any]) -> Forced:
    """Parameters by name, and the buffers that the donor holds."""
    forced, held = Forced(), donor["parameters"]
    names = NameMatch(held)
    done: set[int] = set()
    found = [(name, tensor, names.find(name)) for name, tensor in live.named_parameters()]
    for name, tensor, match in sorted(found, key=lambda entry: entry[2] is None):
        if id(tensor) not in done and match is not None:
            forced.put(name, tensor, held[match])
            done.add(id(tensor))
        elif id(tensor) not in done:
            forced.missing.append(name)
    for name, buffer in live.named_buffers():
        match = names.find(name)
        if match is not None:
            forced.put(name, buffer, held[match])
    return forced


def force_moments(live: Live, donor: dict[str, Any]) -> Forced:
    """Moments by position in the optimizer's order (int keys) or by parameter name (text keys)."""
    forced, held = Forced(), donor["moments"]
    names = NameMatch({key: None for key in held if isinstance(key, str)})
    known = {id(param): name for name, param in reversed(live.named_parameters())}
    optimizers = live.optimizers()
    for optimizer in optimizers:
        for index, (group, param) in enumerate(_params(optimizer)):
            name = known.get(id(param), f"parameter {index}")
            key: Any = index if index in held and len(optimizers) == 1 else names.find(name)
            if key is None:
                forced.missing.append(name)
            else:
                _force_one(forced, f"{name} moments", optimizer, group, param, held[key])
    return forced


def _force_one(
    forced: Forced, name: str, optimizer: torch.optim.Optimizer, group: dict[str, Any], param: Any, moments: Any
) -> None:
    state = optimizer.state[param]
    for key, tensor in moments.items():
        if not isinstance(state.get(key), torch.Tensor):
            is_on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
            state[key] = torch.zeros_like(tensor, device="cpu" if is_on_host else param.device)
            forced.num_changed += 1
        forced.put(f"{name}.{key}", state[key], tensor)


def all_moments(live: Live) -> list[torch.Tensor]:
    """Every moment of every optimizer, in order."""
    return [
        tensor
        for optimizer in live.optimizers()
        for _, param in _params(optimizer)
        for _, tensor in moments_of(optimizer, param)
    ]


def _params(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], Any]]:
    return [(group, param) for group in optimizer.param_groups for param in group["params"]]


def shard_of(live: torch.Tensor, donor: torch.Tensor) -> Optional[torch.Tensor]:
    """The part of a whole tensor that this rank holds of `live`; None where the layout is not understood."""
    if getattr(live, "_local_tensor", None) is None:
        return donor
    if tuple(donor.shape) != tuple(live.shape):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    spec: Any = live
    sizes, offsets = compute_local_shape_and_global_offset(live.shape, spec.device_mesh, spec.placements)
    return donor[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes))]


class NameMatch:
    """Finds a live name among recorded ones: equal, equal without wrapper prefixes, or one unique longer name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_plain = {_plain(name): name for name in names}

    def find(self, name: str) -> Optional[str]:
        """The recorded name, or None where there is none or more than one."""
        plain = _plain(name)
        if plain in self._by_plain:
            return self._by_plain[plain]
        longer = [full for short, full in self._by_plain.items() if short.endswith("." + plain)]
        shorter = [full for short, full in self._by_plain.items() if plain.endswith("." + short)]
        candidates = longer or shorter
        return candidates[0] if len(candidates) == 1 else None


def _plain(name: str) -> str:
    while name.startswith(PREFIXES):
        name = name[len(next(p for p in PREFIXES if name.startswith(p))) :]
    return name.replace("_orig_mod.", "")
