"""index_select of distinct places: its gradient is a plain copy, where autograd's own would add serially."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gather_distinct(values: Tensor, places: Tensor, dim: int) -> Tensor:
    """Return values.index_select(dim, places); no place comes twice."""
    found: Tensor = _Gather.apply(values, places, dim)  # type: ignore[no-untyped-call]
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape, ctx.dim = values.shape, dim
        return values.index_select(dim, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        spread = grad.new_zeros(ctx.shape)
        return spread.index_copy_(ctx.dim, places, grad), None, None
