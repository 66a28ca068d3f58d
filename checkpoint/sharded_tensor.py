"""Tensors of which each rank has a part (DTensor, as fully_shard makes them): as whole ones, and back.

They are known by their methods: importing their class takes seconds, and most programs have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and hasattr(tensor, "full_tensor")


def local_part(tensor: Any) -> Tensor:
    """Return this rank's part, sharing its memory; of a tensor that is whole, the tensor."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor; if it is sharded, every rank calls."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


@torch.no_grad()
def copy_whole(values: Tensor, *, into: Any) -> None:
    """Set a tensor, or this rank's part of it, from a whole one; nothing is sent."""
    if is_sharded(into):
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(values, into.device_mesh, into.placements, src_data_rank=None).to_local()
    local_part(into).copy_(values)
