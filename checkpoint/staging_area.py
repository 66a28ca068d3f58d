"""Memory that the dense state is copied into at a step boundary, so that training may go on at once.

What is on a device is copied in the order of its stream, which nobody waits for: on the device as far as there is room
for it, which whoever writes brings to the host, and else to the host, which the steps after it wait for on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def within(num_bytes: int, parts: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Return the parts, in order, that there is room for beside those before them."""
    found = []
    for name, part in parts:
        if part.nbytes <= num_bytes:
            num_bytes -= part.nbytes
            found.append((name, part))
    return found


class StagingArea:
    """One for the life of a Checkpointer: the memory of a name is used again by the next save (ADR 0005)."""

    def __init__(self, device_bytes: int = 0) -> None:
        """Args: device_bytes: that copies on each device may take."""
        self._device_bytes = device_bytes
        self._memory: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] = {}  # on devices
        self._coming: dict[torch.device, tuple[torch.cuda.Event, dict[str, Tensor]]] = {}

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, StagedPart]:
        """Copy this rank's parts; those on a device are on the host after `bring`.

        What the call before returned is overwritten. Raises: ConfigError: a tensor that cannot be stored.
        """
        staged, self._coming = {}, {}
        on_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for name, tensor in tensors.items():
            dtype_name(tensor, name)
            part = local_part(tensor).detach()
            memory = self._memory_for(name, part)
            staged[name] = StagedPart(memory, local_box(tensor))
            if part.is_cuda:
                on_device.setdefault(part.device, []).append((name, part))
            else:
                memory.copy_(part)
        for device, parts in on_device.items():
            copies = {name: self._copy_for(name, part) for name, part in within(self._device_bytes, parts)}
            if copies:
                torch._foreach_copy_(list(copies.values()), [part for name, part in parts if name in copies])
            for name, part in parts:
                if name not in copies:
                    staged[name].values.copy_(part, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(device))
            self._coming[device] = (copied, copies)
        self._memory = {name: part.values for name, part in staged.items()}
        self._copies = {name: copy for _, copies in self._coming.values() for name, copy in copies.items()}
        return staged

    def bring(self) -> None:
        """Have what was staged on the host, from devices too; by any thread, once after each `stage`."""
        for device, (copied, copies) in self._coming.items():
            stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            stream.wait_event(copied)  # what went to the host at once is there, too
            with torch.cuda.stream(stream):
                for name, copy in copies.items():
                    self._memory[name].copy_(copy, non_blocking=True)
            stream.synchronize()
        self._coming = {}

    def _copy_for(self, name: str, part: Tensor) -> Tensor:
        known = self._copies.get(name)
        if known is not None and (known.shape, known.dtype, known.device) == (part.shape, part.dtype, part.device):
            return known
        return torch.empty(part.shape, dtype=part.dtype, device=part.device)

    def _memory_for(self, name: str, part: Tensor) -> Tensor:
        known = self._memory.get(name)
        if known is not None and (known.shape, known.dtype) == (part.shape, part.dtype):
            return known
        if part.is_cuda:
            return torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        return new_tensor(tuple(part.shape), part.dtype)
