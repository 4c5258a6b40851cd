"""Was it this flipped bit? The same bits of one element are flipped in a healthy replay, at one step."""

from __future__ import annotations

import torch

from spike_probe.intervention import Intervention, Live
from spike_probe.plan import PlannedChange

NAME = "set-element"
FACTOR = "checkpoint"
SUMMARY = "Bits of one element of one parameter are flipped before the forward of a step."
PARAMETERS = ("element",)
SPECIFIC = True

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SetElement(Intervention):
    """`element` is the text "name:position:mask": a parameter's name, a place in it when flattened, and a
    hexadecimal mask of the bits to flip."""

    def __init__(self, change: PlannedChange) -> None:
        super().__init__(change)
        self._is_done = False

    def before_forward(self, live: Live, module: torch.nn.Module) -> None:
        if self._is_done or not self.acts_on(live.step):
            return
        self._is_done = True
        name, position, mask = str(self.parameters["element"]).rsplit(":", 2)
        found = [tensor for known, tensor in live.named_parameters() if known == name]
        if not found:
            live.effect("element", name, "no parameter of this name", False)
            return
        before, after = _flip(found[0].detach(), int(position), int(mask, 16))
        live.effect("element", before, after, before != after)


def _flip(tensor: torch.Tensor, position: int, mask: int) -> tuple[str, str]:
    """Flip the bits in place; the element before and after, as text. The tensor must be contiguous."""
    element = tensor.view(-1)[position : position + 1]
    bits = element.view(_INTEGERS[tensor.element_size()])
    width = 8 * tensor.element_size()
    # A mask with the top bit set is a negative number of the signed integer type.
    signed = mask - (1 << width) if tensor.element_size() > 1 and mask >> (width - 1) else mask
    before = repr(float(element))
    bits ^= signed
    return before, repr(float(element))


INTERVENTION = SetElement
