"""How does the probe see a training loop that knows nothing of it? The few places of torch that it wraps.

Each wrapper calls the original exactly once, with the same arguments unless an intervention says otherwise, and
turns an exception of the probe into an `error` line. Under torch.compile's tracing they do nothing.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from spike_probe.recorder import Recorder

IGNORE_INDEX = -100
LOSSES = ("cross_entropy", "nll_loss", "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
_IGNORE_POSITION = {"cross_entropy": 4, "nll_loss": 4}
"""Position of ignore_index in the signatures of torch.nn.functional."""


class Hooks:
    """All wrappers of one process around one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._wrapped: dict[int, tuple[Any, Any]] = {}
        """(original, wrapper) by the original's id."""

    def install(self) -> None:
        """Wrap; to be called once, when torch has just been imported."""
        self._wrap_module_call()
        self._wrap_backward()
        for name in LOSSES:
            self._wrap_loss(name)
        self._wrap_clipping()
        self._wrap_autocast()
        self._wrap_scaler()
        self._wrap_optimizers()
        self._replace_aliases()

    def _put(self, home: Any, name: str, wrapper: Any) -> None:
        original = getattr(home, name)
        self._wrapped[id(original)] = (original, wrapper)
        setattr(home, name, wrapper)
        _skip_in_dynamo(wrapper)

    def _replace_aliases(self) -> None:
        """Wherever a module that is already imported holds an original under a name of its own."""
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict) or names is globals():
                continue
            for alias, value in list(names.items()):
                original, wrapper = self._wrapped.get(id(value), (None, None))
                if wrapper is not None and value is original:
                    setattr(module, alias, wrapper)

    def guard(self, where: str, call: Callable[..., Any], *args: Any) -> Any:
        """Run a part of the probe; its exceptions end here. SystemExit passes: the window is complete."""
        if _is_captured():
            return None
        try:
            with torch.no_grad():
                return call(*args)
        except Exception as error:
            try:
                self.recorder.writer.error(where, error)
            except Exception:  # a full disk: nothing left to say it to
                self.recorder.is_off = True
            return None

    # --- forward --------------------------------------------------------------------------------

    def _wrap_module_call(self) -> None:
        recorder, original = self.recorder, torch.nn.Module.__call__
        outermost = self._outermost_call

        @functools.wraps(original)
        def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (
                recorder.inside
                or recorder.is_off
                or not torch.is_grad_enabled()
                or not getattr(self, "training", False)
            ):
                return original(self, *args, **kwargs)
            return outermost(original, self, args, kwargs)

        self._put(torch.nn.Module, "__call__", __call__)
        _skip_in_dynamo(Hooks._outermost_call)
        _skip_in_dynamo(Hooks.guard, with_callees=True)

    def _outermost_call(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        recorder = self.recorder
        answer = self.guard("forward", recorder.forward_begins, module, args, kwargs)
        if answer is not None:
            args, kwargs = answer
        recorder.inside += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            recorder.inside -= 1

    def _wrap_loss(self, name: str) -> None:
        functional = torch.nn.functional
        original = getattr(functional, name)
        recorder, guard = self.recorder, self.guard
        at = _IGNORE_POSITION.get(name)

        @functools.wraps(original)
        def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or recorder.is_off or not _is_training(input, target):
                return original(input, target, *args, **kwargs)
            ignore = None if at is None else _argument(args, kwargs, at - 2, "ignore_index", IGNORE_INDEX)
            answer = guard(f"loss {name}", recorder.loss_call, name, input, target, ignore)
            return original(input, target if answer is None else answer, *args, **kwargs)

        loss.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]  # torch.jit.script
        self._put(functional, name, loss)

    def _wrap_autocast(self) -> None:
        recorder, guard = self.recorder, self.guard
        kind = torch.amp.autocast_mode.autocast
        original = kind.__enter__

        @functools.wraps(original)
        def __enter__(self: Any) -> Any:
            if not recorder.is_off and torch.is_grad_enabled():
                enabled = self._enabled
                guard("autocast", recorder.autocast_enters, self)
                result = original(self)
                self._enabled = enabled  # scripts enter the same region again at every step
                return result
            return original(self)

        self._put(kind, "__enter__", __enter__)

    # --- backward -------------------------------------------------------------------------------

    def _wrap_backward(self) -> None:
        recorder, guard = self.recorder, self.guard
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.inside or recorder.is_off:
                return original(tensors, *args, **kwargs)
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            guard("backward", recorder.backward_begins, roots)
            recorder.inside += 1
            try:
                original(tensors if isinstance(tensors, torch.Tensor) else roots, *args, **kwargs)
            except BaseException:
                recorder.backward_failed()
                raise
            finally:
                recorder.inside -= 1
            guard("backward", recorder.backward_ended)
            return None

        self._put(torch.autograd, "backward", backward)

    # --- update ---------------------------------------------------------------------------------

    def _wrap_clipping(self) -> None:
        module = sys.modules["torch.nn.utils.clip_grad"]
        inner = getattr(module, "_clip_grads_with_norm_", None)
        whole = module.clip_grad_norm_
        recorder, guard = self.recorder, self.guard
        depth = {"norm_type": 2.0, "is_inside": False}

        @functools.wraps(whole)
        def clip_grad_norm_(parameters: Any, max_norm: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            if recorder.is_off:
                return whole(parameters, max_norm, norm_type, *args, **kwargs)
            parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
            answer = guard("clip", recorder.clip_norm, float(max_norm))
            max_norm = max_norm if answer is None else answer
            if inner is None:
                guard("clip", recorder.clipping, _listed(parameters), max_norm, None, False)
            depth.update(norm_type=float(norm_type), is_inside=True)
            try:
                return whole(parameters, max_norm, norm_type, *args, **kwargs)
            finally:
                depth.update(norm_type=2.0, is_inside=False)

        self._put(module, "clip_grad_norm_", clip_grad_norm_)
        if inner is None:
            return

        @functools.wraps(inner)
        def clip_grads_with_norm_(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.is_off:
                return inner(parameters, max_norm, total_norm, *args, **kwargs)
            parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
            if not depth["is_inside"]:
                answer = guard("clip", recorder.clip_norm, float(max_norm))
                max_norm = max_norm if answer is None else answer
            is_l2 = depth["norm_type"] == 2.0
            guard("clip", recorder.clipping, _listed(parameters), max_norm, _held(total_norm), is_l2)
            return inner(parameters, max_norm, total_norm, *args, **kwargs)

        self._put(module, "_clip_grads_with_norm_", clip_grads_with_norm_)

    def _wrap_optimizers(self) -> None:
        recorder, guard = self.recorder, self.guard
        original = Optimizer.__init__

        @functools.wraps(original)
        def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            recorder.state.note_optimizer(self)

        self._put(Optimizer, "__init__", __init__)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: (
                None if recorder.is_off else guard("update", recorder.update_ended, optimizer)
            )
        )

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """With a closure (Lightning, LBFGS) gradients exist only after it has run: measure there."""
        if self.recorder.is_off:
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(closure):
            self.guard("update", self.recorder.update_begins, optimizer)
            return None
        calls: list[int] = []

        @functools.wraps(closure)
        def measured() -> Any:
            result = closure()
            if not calls:
                calls.append(1)
                self.guard("update", self.recorder.update_begins, optimizer)
            return result

        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": measured}
        return (args[0], measured, *args[2:]), kwargs

    def _wrap_scaler(self) -> None:
        kind = _grad_scaler()
        recorder, guard = self.recorder, self.guard
        scale, step = kind.scale, kind.step

        @functools.wraps(scale)
        def scaled(self: Any, outputs: Any) -> Any:
            result = scale(self, outputs)
            if not recorder.is_off and isinstance(outputs, torch.Tensor) and result is not outputs:
                guard("scale", recorder.loss_scaled, outputs, result)
            return result

        @functools.wraps(step)
        def stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.is_off or not self.is_enabled():
                return step(self, optimizer, *args, **kwargs)
            mark = guard("scaler", recorder.scaler_step_begins, self._scale)
            result = step(self, optimizer, *args, **kwargs)
            guard("scaler", recorder.scaler_step_ended, optimizer, mark)
            return result

        self._put(kind, "scale", scaled)
        self._put(kind, "step", stepped)


def _is_captured() -> bool:
    """True while operations are recorded for later (torch.jit.trace, CUDA graphs): ours must not be among them."""
    if torch.jit.is_tracing():
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _grad_scaler() -> Any:
    module = sys.modules.get("torch.amp.grad_scaler") or sys.modules["torch.cuda.amp.grad_scaler"]
    return module.GradScaler


def _is_training(prediction: Any, target: Any) -> bool:
    return (
        torch.is_grad_enabled()
        and isinstance(prediction, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and prediction.requires_grad
    )


def _argument(args: Any, kwargs: Any, position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _held(total: Any) -> Optional[torch.Tensor]:
    """A norm as a plain tensor: of a DTensor the local part, which is the whole only where it is replicated."""
    if not isinstance(total, torch.Tensor):
        return torch.tensor(float(total))
    return getattr(total, "_local_tensor", total)


def _skip_in_dynamo(function: Any, *, with_callees: bool = False) -> None:
    """torch.compile shall look through this frame, as it does through torch's own, and not compile it."""
    frames = torch._C._dynamo.eval_frame
    try:
        if hasattr(frames, "skip_code"):  # torch < 2.7
            frames.skip_code(function.__code__)
            return
        action = frames._FrameAction
        strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if with_callees else action.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, strategy)
    except AttributeError:  # compiled code then begins at the wrapper: slower to compile, same result
        return
