"""Where does the first NaN appear? Watches every module of one step: finite inputs, non-finite output.

Hooks are set on each module when a watched step's forward begins and removed when its backward ends. Nothing of what
they see is kept on the device, so a watched step is slow; it is asked for one step at a time.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from spike_probe.digests import local
from spike_probe.live_state import plain_name
from spike_probe.structure import find_tensors


class ModuleWatch:
    """Forward and backward facts of one attempted step, over all its micro-batches."""

    def __init__(self) -> None:
        self.first_forward = ""
        self.first_backward = ""
        self._absmax: dict[str, float] = {}
        self._handles: list[Any] = []
        self._roots: set[int] = set()
        self._backward_is_clean = True
        self._stance: Optional[Any] = None

    def attach(self, root: torch.nn.Module) -> None:
        """Watch all modules of this model; a compiled model runs eagerly until `detach`."""
        if id(root) in self._roots:
            return
        self._roots.add(id(root))
        if self._stance is None and is_compiled(root):
            self._stance = _force_eager()
        parents = {}
        for name, module in root.named_modules():
            plain = plain_name(root, name) if name else ""
            parents[plain] = module
            self._handles.append(module.register_forward_pre_hook(self._before(plain), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(plain), with_kwargs=True))
        for name, param in root.named_parameters():
            if param.requires_grad:
                owner = plain_name(root, name).rpartition(".")[0]
                self._handles.append(param.register_hook(self._gradient(owner)))

    def detach(self) -> None:
        """The micro-batch's backward has ended."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._roots.clear()
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def facts(self) -> dict[str, Any]:
        """Keys of the `modules` line."""
        return {
            "first_nonfinite_forward": self.first_forward,
            "first_nonfinite_backward": self.first_backward,
            "absmax": [[name, value] for name, value in self._absmax.items()],
        }

    def _before(self, name: str) -> Any:
        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if torch.is_grad_enabled():
                for tensor in _floats((args, kwargs)):
                    if tensor.requires_grad:
                        self._handles.append(tensor.register_hook(self._gradient(name)))

        return _silent(before)

    def _after(self, name: str) -> Any:
        def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            with torch.no_grad():
                outputs = _floats(output)
                largest = [float(local(t.detach()).abs().max()) for t in outputs if t.numel()]
                if largest:
                    worst = max(largest, key=lambda value: float("inf") if value != value else value)
                    self._absmax[name] = _larger(self._absmax.get(name), worst)
                if not self.first_forward and not _finite(outputs) and _finite(_floats((args, kwargs))):
                    self.first_forward = name or type(module).__name__
            parent = name.rpartition(".")[0]
            for tensor in outputs:
                if tensor.requires_grad:
                    self._handles.append(tensor.register_hook(self._gradient(parent)))

        return _silent(after)

    def _gradient(self, owner: str) -> Any:
        """Backward runs from the loss down: the first non-finite gradient was made by the module that owns it."""

        def gradient(grad: torch.Tensor) -> None:
            if self._backward_is_clean and not _finite([grad.detach()]):
                self._backward_is_clean = False
                self.first_backward = owner or "loss"

        return _silent(gradient)


def _silent(hook: Any) -> Any:
    def guarded(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except Exception:  # a watched module may hold what cannot be measured; the run goes on
            return

    return guarded


def _floats(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    find_tensors(value, found)
    return [tensor for tensor in found if tensor.is_floating_point()]


def _finite(tensors: list[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(local(tensor.detach())).all()) for tensor in tensors)


def _larger(old: Optional[float], new: float) -> float:
    if old is None or new != new:
        return new
    return old if old != old else max(old, new)


def is_compiled(root: torch.nn.Module) -> bool:
    """True where torch.compile has a part in this model."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in root.modules()
    )


def _force_eager() -> Optional[Any]:
    compiler: Any = torch.compiler
    if not hasattr(compiler, "set_stance"):
        return None
    stance = compiler.set_stance("force_eager")
    stance.__enter__()
    return stance
