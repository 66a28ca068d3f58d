"""Tensors of which each rank has a part (DTensor, as fully_shard makes them): which part, as whole ones, and back.

They are known by their methods: importing their class takes half a second, and most programs have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Box:
    """Which elements of a tensor of `shape`: `sizes` many along each dimension, from `offsets` on."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def is_sharded(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and hasattr(tensor, "full_tensor")


def has_a_box(tensor: Any) -> bool:
    """Return whether each rank's part of a sharded tensor is a box of it; not so where parts are summands."""
    return is_sharded(tensor) and not any(placement.is_partial() for placement in tensor.placements)


def local_part(tensor: Any) -> Tensor:
    """Return this rank's part, sharing its memory; of a tensor that is whole, the tensor."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def local_box(tensor: Any) -> Box:
    """Return which part of a tensor `local_part` gives; of a sharded one that `has_a_box`."""
    shape = tuple(tensor.shape)
    if not is_sharded(tensor):
        return Box(shape, (0,) * len(shape), shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if len(offsets) != len(shape) or 0 in sizes:  # nothing of it, or a rank that is not of its mesh
        return Box(shape, (0,) * len(shape), (0,) * len(shape))
    return Box(shape, tuple(offsets), tuple(sizes))


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor; if it is sharded, every rank calls."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def sharded_like(part: Tensor, like: Any) -> Tensor:
    """Return the sharded tensor of which `part` is this rank's part, laid out as `like`; nothing is sent."""
    from torch.distributed.tensor import DTensor

    local = part.reshape(local_part(like).shape)
    made: Tensor = DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return made


@torch.no_grad()
def copy_whole(values: Tensor, *, into: Any) -> None:
    """Set a tensor, or this rank's part of it, from a whole one or one sharded alike; nothing is sent."""
    if is_sharded(into) and not is_sharded(values):
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(values, into.device_mesh, into.placements, src_data_rank=None)
    local_part(into).copy_(local_part(values))
