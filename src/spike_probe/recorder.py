"""Where does one step end and the next begin, and what happened in between? Every event of training arrives here.

A step ends with the first backward (or outermost forward of a model) after an optimizer has stepped or a gradient
scaler has withheld it; so several optimizers make one step, and accumulation does not count.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from typing import Any, Optional

import torch

from spike_probe.autocast import ambient_autocast
from spike_probe.batches import MicroBatch
from spike_probe.digests import dtype_name, local
from spike_probe.intervention import Intervention
from spike_probe.ledger import Ledger
from spike_probe.live_state import LiveState
from spike_probe.modules import ModuleWatch, is_compiled
from spike_probe.norms import ParameterCopy, gradients, num_nonfinite, tensor_norms, total_of
from spike_probe.open_step import Clip, OpenStep
from spike_probe.plan import Plan
from spike_probe.readback import number_of
from spike_probe.rng import rng_digests
from spike_probe.window import WindowEnd
from spike_probe.writer import TraceWriter


class Recorder:
    """The state machine of one process. Methods are called by `hooks`, which keeps their exceptions from the user."""

    def __init__(self, plan: Plan, writer: TraceWriter, intervention: Optional[Intervention]) -> None:
        self.plan = plan
        self.writer = writer
        self.intervention = intervention
        self.state = LiveState()
        self.window = WindowEnd()
        self.first_step = plan.first_step
        self.num_steps = 0
        """Attempted steps recorded so far."""
        self.inside = 0
        """Depth of outermost calls and backwards; inner calls are none of ours."""
        self.is_off = False
        self._micro: Optional[MicroBatch] = None
        self._step: Optional[OpenStep] = None
        self._last_end: Optional[float] = None
        self._previous_micros: Optional[int] = None
        self._has_started = False
        self._has_updated = False
        self._seen_model = False
        self._seen_backward = False
        self._is_compiled = False
        self._traced_autocast: dict[str, None] = {}
        """Autocast types inside of compiled code: entered while it is traced, and never seen again."""
        self._scaled: list[tuple[Any, torch.Tensor]] = []
        """(weak reference to a scaled loss, the loss itself), newest last."""
        self._scaler_steps = 0
        self._copies: dict[int, ParameterCopy] = {}
        self._held: list[Any] = []
        self._ledger = Ledger(plan, writer, self.state)

    # --- what interventions see -----------------------------------------------------------------

    @property
    def step(self) -> int:
        """The attempted step in progress."""
        return self.first_step + self.num_steps + 1

    @property
    def rank(self) -> int:
        return self._ledger.rank

    def _upcoming(self) -> int:
        """The step that data and forwards arriving now belong to."""
        return self.step + (self._step is not None and self._step.is_stepped)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.state.optimizers()

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return self.state.named_parameters()

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        return self.state.named_buffers()

    def roots(self) -> list[torch.nn.Module]:
        return self.state.roots()

    def num_micro_batches(self) -> Optional[int]:
        return self._previous_micros

    def effect(self, what: str, before: str, after: str, took_effect: bool, step: Optional[int] = None) -> None:
        name = self.intervention.name if self.intervention else ""
        self.writer.write(
            "effect", step=self.step if step is None else step, intervention=name, what=what, before=before,
            after=after, took_effect=bool(took_effect),
        )  # fmt: skip

    # --- forward --------------------------------------------------------------------------------

    def forward_begins(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """An outermost module call in training; answers the arguments to call it with."""
        if self.window.is_complete:
            return args, kwargs  # a handler of the script's own may still want to evaluate something
        if not self.state.is_root(module) and next(module.parameters(), None) is None:
            if not self._is_receiving():
                return args, kwargs
        else:
            self._model_call(module)
        return self._current_micro().model_call(module, args, kwargs, self._substitute)

    def _model_call(self, module: torch.nn.Module) -> None:
        self._roll()
        if self.state.note_root(module):
            self._is_compiled = self._is_compiled or is_compiled(module)
        self._seen_model = True
        step = self._current_step()
        if not self._has_started:
            self._has_started = True
            self._begin("at_start")
        self._intervene("before_forward", module)
        if step.rng is None:
            step.rng = rng_digests()
        if not self._has_updated and not step.micros:
            self._ledger.note_buffers()
        if step.number in self.plan.module_steps:
            step.watch = step.watch or ModuleWatch()
            step.watch.attach(module)
        self._note_ambient_autocast(step)
        self._current_micro().has_model_call = True

    def _is_receiving(self) -> bool:
        """Data outside of a model belongs to a micro-batch only once its model was called (or none ever is)."""
        return not self._seen_model or (self._micro is not None and self._micro.has_model_call)

    def _substitute(self, micro: MicroBatch, site: int, tensors: list[torch.Tensor]) -> Optional[list[torch.Tensor]]:
        return self._intervene("substitute", micro, site, tensors)  # type: ignore[no-any-return]

    def loss_call(
        self, name: str, prediction: torch.Tensor, target: torch.Tensor, ignore: Optional[int]
    ) -> torch.Tensor:
        """A loss function of torch was called on a prediction that requires gradients; answers its target."""
        if not self._is_receiving():
            return target
        micro = self._current_micro()
        if self.inside == 0 and not target.requires_grad:
            target = micro.target_call(name, target, self._substitute)
        if ignore is None:
            micro.targets.add_all(target)
        else:
            micro.targets.add_classes(prediction, target, ignore)
        return target

    def autocast_enters(self, region: Any) -> None:
        """An autocast region is about to be entered in training, by the script or inside the model's forward."""
        number = self._upcoming()
        self._intervene("autocast", number, region, step=number)
        if region._enabled and self.inside and self._step is not None:
            self._step.autocast[dtype_name(region.fast_dtype)] = None
            if self._is_compiled:
                self._traced_autocast[dtype_name(region.fast_dtype)] = None

    def _note_ambient_autocast(self, step: OpenStep) -> None:
        for _, dtype in ambient_autocast():
            step.autocast[dtype_name(dtype)] = None

    # --- backward -------------------------------------------------------------------------------

    def loss_scaled(self, plain: torch.Tensor, scaled: torch.Tensor) -> None:
        """A gradient scaler has multiplied a loss."""
        self._scaled = [*self._scaled[-7:], (weakref.ref(scaled), plain.detach())]

    def backward_begins(self, tensors: list[torch.Tensor]) -> None:
        """A real backward begins: the micro-batch is complete."""
        if self.window.is_complete:
            self.window.leave()
        self._roll()
        self._seen_backward = True
        if tensors:
            self._ledger.open(tensors[0].device)
        micro = self._current_micro()
        micro.loss = self._loss_of(tensors)
        micro.release()
        self._scaled.clear()

    def backward_ended(self) -> None:
        """The gradients of one micro-batch have been added."""
        micro, step = self._current_micro(), self._current_step()
        step.micros.append(micro)
        self._micro = None
        if step.watch is not None:
            step.watch.detach()
        self._intervene("after_backward", micro)

    def backward_failed(self) -> None:
        """The backward raised: what arrived for it belongs to no step."""
        self._micro = None

    def _loss_of(self, tensors: list[torch.Tensor]) -> Any:
        scalars = []
        for tensor in tensors:
            if tensor.numel() == 1:
                plain = next((plain for scaled, plain in self._scaled if scaled() is tensor), tensor.detach())
                scalars.append(number_of(local(plain)))
        return sum(scalars[1:], scalars[0]) if scalars else None

    # --- update ---------------------------------------------------------------------------------

    def clipping(self, params: list[torch.Tensor], max_norm: float, total: Optional[torch.Tensor], is_l2: bool) -> None:
        """Gradients are about to be scaled down to `max_norm`; `total` is their norm where torch has it already."""
        step = self._current_step()
        key = (len(params), id(params[0]) if params else 0)
        if key in step.clips:
            step.clips[key].max_norm = min(step.clips[key].max_norm, float(max_norm))
            return
        self._ledger.gradients(step)
        grads = [param.grad for param in params if param.grad is not None]
        norm = number_of(total) if total is not None and is_l2 else None
        if isinstance(norm, float) and math.isfinite(norm):
            step.clips[key] = Clip(float(max_norm), norm, 0)
            return
        norms = tensor_norms(grads)
        if norms is not None:
            norm = total_of(norms) if norm is None else norm
            step.clips[key] = Clip(float(max_norm), norm, num_nonfinite(norms, norm))

    def clip_norm(self, max_norm: float) -> float:
        """The norm to clip to: the script's, or the intervention's."""
        changed = self._intervene("clip_norm", max_norm)
        return max_norm if changed is None else float(changed)

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are final; with a closure this comes after the closure has run."""
        if self._is_preparing(optimizer):
            return
        step = self._current_step()
        self.state.note_optimizer(optimizer)
        update = step.update(optimizer)
        self._first_update()
        self._ledger.gradients(step)
        grads = gradients(optimizer)
        update.is_withheld = not grads
        if not step.clips:
            self._measure_gradients(optimizer, grads, step)
        found_inf = getattr(optimizer, "found_inf", None)
        update.found_inf = number_of(found_inf) if isinstance(found_inf, torch.Tensor) else None
        if self.plan.is_trial:
            self._copies.setdefault(id(optimizer), ParameterCopy()).take(optimizer)
        self._intervene("before_update", optimizer)

    def _is_preparing(self, optimizer: torch.optim.Optimizer) -> bool:
        """An update before any forward or backward, by zeros alone: how `torch.distributed.checkpoint.state_dict` makes
        an optimizer allocate the moments that it then loads into. It trains nothing and is no step."""
        if self._seen_model or self._seen_backward:
            return False
        return all(not bool(local(grad).any()) for grad in gradients(optimizer))

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has returned."""
        if self._is_preparing(optimizer):
            return
        step = self._current_step()
        update = step.update(optimizer)
        update.lr = _learning_rates(optimizer)
        step.param_dtypes = step.param_dtypes or _dtypes(optimizer)
        if self.plan.is_trial:
            update.moved = self._copies[id(optimizer)].moved() if id(optimizer) in self._copies else None
            params = [param for group in optimizer.param_groups for param in group["params"]]
            update.size = total_of(tensor_norms(params))
        self._intervene("after_update", optimizer)
        if self.intervention is not None and self.intervention.withholds(step.number):
            update.is_withheld = True
        self._scaler_steps += 1
        self._attempted(step)

    def scaler_step_begins(self, scale: Optional[torch.Tensor]) -> int:
        """A gradient scaler is about to step; answers a mark for `scaler_step_ended`."""
        step = self._current_step()
        step.loss_scale = number_of(scale) if isinstance(scale, torch.Tensor) else None
        return self._scaler_steps

    def scaler_step_ended(self, optimizer: torch.optim.Optimizer, mark: int) -> None:
        """The scaler has returned: where the optimizer did not run, this attempt was withheld."""
        if self._scaler_steps != mark:
            return
        step = self._current_step()
        self.state.note_optimizer(optimizer)
        update = step.update(optimizer)
        update.is_withheld = True
        update.lr = _learning_rates(optimizer)
        step.param_dtypes = step.param_dtypes or _dtypes(optimizer)
        if self.plan.is_trial:
            update.moved = 0.0
        if not step.clips:
            self._measure_gradients(optimizer, gradients(optimizer), step)
        self._attempted(step)

    def _attempted(self, step: OpenStep) -> None:
        step.mark_stepped()
        if step.number in self.plan.fingerprint_steps:
            # A script that ends here drops its model before the step is known to be over.
            self._held = [*self.state.roots(), *self.state.optimizers()]

    def _measure_gradients(self, optimizer: torch.optim.Optimizer, grads: list[torch.Tensor], step: OpenStep) -> None:
        norms = tensor_norms(grads)
        scale = getattr(optimizer, "grad_scale", None)
        if norms is not None and isinstance(scale, torch.Tensor):
            norms = norms / scale.to(norms.device)
        update = step.update(optimizer)
        update.norm = total_of(norms)
        update.nonfinite = num_nonfinite(norms, update.norm)

    def _first_update(self) -> None:
        if self._has_updated:
            return
        self._has_updated = True
        self._begin("before_first_update")
        self._ledger.first_update()

    # --- the end of a step ----------------------------------------------------------------------

    def _roll(self) -> None:
        """Close a step that has been attempted; after the window's last one, leave."""
        if self._step is None or not self._step.is_stepped:
            return
        self._close()
        if self.plan.stop_after is not None and self.step > self.plan.stop_after:
            self._end("window-complete")
            self.window.leave()

    def finish(self) -> None:
        """The interpreter is about to exit."""
        if self.is_off or not self.writer.is_open or os.getpid() != self.writer.pid or self.window.is_complete:
            return
        if self._step is not None and self._step.is_stepped:
            self._close()
        done = self.plan.stop_after is not None and self.step > self.plan.stop_after
        self._end("window-complete" if done else "exited")

    def _end(self, reason: str) -> None:
        self._ledger.end(reason, self.num_steps)

    def _close(self) -> None:
        step, self._step = self._step, None
        assert step is not None
        self._last_end = step.ended
        self._previous_micros = len(step.micros)
        step.autocast = step.autocast or self._traced_autocast
        self._intervene("after_step")
        self.num_steps += 1
        self._ledger.close(step)
        self._held = []

    # --- small parts ----------------------------------------------------------------------------

    def _intervene(self, moment: str, *args: Any, step: Optional[int] = None) -> Any:
        """Tell the intervention, if it acts on this step; its exceptions must not cost the record of the step."""
        if self.intervention is None or not self.intervention.acts_on(self.step if step is None else step):
            return None
        try:
            return getattr(self.intervention, moment)(self, *args)
        except Exception as error:
            self.writer.error(f"intervention {self.intervention.name} {moment}", error)
            return None

    def _begin(self, moment: str) -> None:
        """Moments at the start of the process belong to no step."""
        if self.intervention is not None:
            first = min(self.intervention.steps, default=self.step)
            self._intervene(moment, step=first)

    def _current_step(self) -> OpenStep:
        if self._step is None:
            self._step = OpenStep(self.step, time.perf_counter() if self._last_end is None else self._last_end)
        return self._step

    def _current_micro(self) -> MicroBatch:
        if self._micro is None:
            step = self._current_step()
            keep = step.number in self.plan.capture_steps or self.plan.keep_batches > 0
            self._micro = MicroBatch(len(step.micros), keep)
        return self._micro


def _learning_rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    rates = [group.get("lr") for group in optimizer.param_groups]
    return [number_of(rate) if isinstance(rate, torch.Tensor) else float(rate) for rate in rates if rate is not None]


def _dtypes(optimizer: torch.optim.Optimizer) -> str:
    dtypes = {param.dtype: None for group in optimizer.param_groups for param in group["params"]}
    return "+".join(sorted(dtype_name(dtype) for dtype in dtypes))
