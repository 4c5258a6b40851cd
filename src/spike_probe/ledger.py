"""What is written down of a step, and when? Step lines in order, saved batches, fingerprints of the whole state."""

from __future__ import annotations

import os
from typing import Any

import torch

from spike_probe.fingerprint import buffer_prints, gradient_prints, moment_prints, parameter_prints
from spike_probe.kernels import kernel_flags, optimizer_lines
from spike_probe.live_state import LiveState
from spike_probe.open_step import OpenStep, StepLine
from spike_probe.plan import Plan
from spike_probe.process import process_facts, rank_and_world
from spike_probe.readback import Readback, ReadbackQueue
from spike_probe.writer import TraceWriter


class Ledger:
    """Turns closed steps into lines; in record mode a line waits until its numbers have left the device."""

    def __init__(self, plan: Plan, writer: TraceWriter, state: LiveState) -> None:
        self.plan = plan
        self.writer = writer
        self._state = state
        self._rank = -1
        self._queue = ReadbackQueue()
        self._kept: list[list[str]] = []
        """Batch files of the newest steps, record mode."""
        self._buffers: list[dict[str, Any]] = []

    @property
    def rank(self) -> int:
        """This process's rank; first asked when a process group exists, if there will be one."""
        if self._rank < 0:
            self._rank = rank_and_world()[0]
        return self._rank

    def open(self, device: torch.device) -> None:
        """The first backward begins: this process trains."""
        if not self.writer.is_open:
            self.writer.open(self.rank, process_facts(device, self.plan.first_step))

    def close(self, step: OpenStep) -> None:
        """A step is over."""
        line = StepLine(step)
        readback = Readback(lambda: self._write(step, line))
        readback.copies = [] if line.copy is None else [line.copy]
        readback.copies += [site.copy for micro in step.micros for site in micro.sites if site.copy is not None]
        self._queue.add(readback, now=self.plan.is_trial)
        if step.number in self.plan.fingerprint_steps and step.number != self.plan.first_step:
            self._print_state(step.number, buffer_prints(self._state))

    def end(self, reason: str, num_steps: int) -> None:
        """The last line."""
        self._queue.drain(everything=True)
        self.writer.write("end", reason=reason, steps=num_steps)

    def note_buffers(self) -> None:
        """Before a forward of the first step: batch statistics change during it, the checkpoint has them as now."""
        if self.plan.first_step in self.plan.fingerprint_steps:
            self._buffers = buffer_prints(self._state)

    def first_update(self) -> None:
        """Right before the first update: kernels, and the state as loaded."""
        self.writer.write("kernels", kernels=kernel_flags(), optimizers=optimizer_lines(self._state.optimizers()))
        if self.plan.first_step in self.plan.fingerprint_steps:
            self._print_state(self.plan.first_step, self._buffers)
            self._buffers = []

    def gradients(self, step: OpenStep) -> None:
        """Before the first clip or update of a step: its gradients, where the plan asks for them."""
        if step.number in self.plan.gradient_steps and not step.has_gradients_printed:
            step.has_gradients_printed = True
            self.writer.write("fingerprint", step=step.number, tensors=gradient_prints(self._state))

    def _print_state(self, step: int, buffers: list[dict[str, Any]]) -> None:
        tensors = parameter_prints(self._state) + buffers + moment_prints(self._state)
        self.writer.write("fingerprint", step=step, tensors=tensors)

    def _write(self, step: OpenStep, line: StepLine) -> None:
        self.writer.write("step", **line.keys())
        if any(micro.keep for micro in step.micros):
            self._save_batches(step)
        if step.watch is not None:
            self.writer.write("modules", step=step.number, **step.watch.facts())

    def _save_batches(self, step: OpenStep) -> None:
        paths = []
        for micro in step.micros:
            relative = f"batches/step{step.number:08d}-micro{micro.index:03d}-rank{self.rank:05d}.pt"
            paths.append(os.path.join(self.plan.out, relative))
            micro.save(paths[-1])
            keys = {"step": step.number, "micro": micro.index, "digest": micro.digest(), "path": relative}
            self.writer.write("batch", **keys, samples=micro.num_samples())
        if self.plan.keep_batches and step.number not in self.plan.capture_steps:
            self._kept.append(paths)
            self._drop_old()

    def _drop_old(self) -> None:
        while len(self._kept) > self.plan.keep_batches:
            for path in self._kept.pop(0):
                os.unlink(path)
