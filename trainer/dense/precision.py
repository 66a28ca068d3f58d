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


class Float32Linear(nn.Linear):
    """A linear layer that no context narrows: of a model's last one, bfloat16 would leave 8 bits of each logit."""

    def forward(self, values: Tensor) -> Tensor:
        with torch.autocast(values.device.type, enabled=False):
            return super().forward(values.to(self.weight.dtype))
