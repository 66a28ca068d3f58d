"""The numbers that the dense part computes with; weights, gradients' sums, optimizer state and losses stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

Precision = Literal["float32", "bfloat16"]


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context for a forward pass; the backward pass outside computes in what forward has computed in."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


class UndrawnLinear(nn.Linear):
    """A linear layer with weights that nobody has drawn yet: drawing them here would use torch's global generator.

    Not torch's skip_init, which goes over the meta device, and that imports sympy: a second of every rank's start.
    """

    def reset_parameters(self) -> None:
        """Leave the weights as they lie in memory; `draw_weights` follows."""


class Float32Linear(UndrawnLinear):
    """A linear layer that no context narrows: of a model's last one, bfloat16 would leave 8 bits of each logit."""

    def forward(self, values: Tensor) -> Tensor:
        with torch.autocast(values.device.type, enabled=False):
            return super().forward(values.to(self.weight.dtype))
