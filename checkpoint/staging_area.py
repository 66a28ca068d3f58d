"""Host memory that the dense state is copied into at a step boundary, so that training may go on at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ett.checkpoint.sharded_tensor import Box, local_box, local_part
from ett.checkpoint.tensor_bytes import dtype_name, new_tensor


@dataclass(frozen=True, slots=True, eq=False)
class StagedPart:
    """This rank's part of a tensor, in memory of its own."""

    values: Tensor  # on the host, contiguous
    box: Box


class StagingArea:
    """One for the life of a Checkpointer: the memory of a name is used again by the next save (ADR 0005)."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, StagedPart]:
        """Copy this rank's parts, those on a device too, and return when that is done.

        What the call before returned is overwritten. Raises: ConfigError: a tensor that cannot be stored.
        """
        staged, devices = {}, set()
        for name, tensor in tensors.items():
            dtype_name(tensor, name)
            part = local_part(tensor).detach()
            memory = self._memory_for(name, part)
            memory.copy_(part, non_blocking=True)
            if part.is_cuda:
                devices.add(part.device)
            staged[name] = StagedPart(memory, local_box(tensor))
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._memory = {name: part.values for name, part in staged.items()}
        return staged

    def _memory_for(self, name: str, part: Tensor) -> Tensor:
        known = self._memory.get(name)
        if known is not None and (known.shape, known.dtype) == (part.shape, part.dtype):
            return known
        if part.is_cuda:
            return torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        return new_tensor(tuple(part.shape), part.dtype)
