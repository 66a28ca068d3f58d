"""How a thread copies between a device and the host beside what trains: a stream and pinned memory of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.checkpoint.table_segments import Bytes


class Lane:
    """Of one thread. On a CPU all is done at once, and nothing is copied."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Of high priority: else what is a few microseconds of work stands behind the steps that the host is ahead.
        is_cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device, priority=-1) if is_cuda else None  # type: ignore[no-untyped-call]
        self._pinned = torch.empty(0, dtype=torch.uint8)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Within it, work on the device goes to this lane."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            yield

    def wait(self) -> None:
        """Wait for what was given to this lane."""
        if self.stream is not None:
            self.stream.synchronize()

    def to_host(self, tensors: Sequence[Tensor]) -> list[Bytes]:
        """Return contiguous tensors' bytes, uint8 [N, row bytes] each, which are valid until the next call."""
        if self.stream is None:
            return [_bytes(tensor) for tensor in tensors]
        ends = np.cumsum([0, *(-(-tensor.numel() * tensor.element_size() // 64) * 64 for tensor in tensors)])
        if len(self._pinned) < ends[-1]:
            self._pinned = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=True)
        found = []
        with self.here():
            for tensor, start in zip(tensors, ends, strict=False):
                size = tensor.numel() * tensor.element_size()
                there = self._pinned[int(start) : int(start) + size].view(tensor.dtype).view(tensor.shape)
                there.copy_(tensor, non_blocking=True)
                found.append(_bytes(there))
        self.wait()
        return found

    def to_device(self, array: NDArray[np.generic]) -> Tensor:
        """Return a copy on the device, which what is given to this lane from now on may use."""
        with self.here():
            return torch.from_numpy(array).to(self.device)


class Lanes:
    """One for each thread that asks."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._local = device, threading.local()

    def mine(self) -> Lane:
        lane: Lane | None = getattr(self._local, "lane", None)
        if lane is None:
            lane = self._local.lane = Lane(self._device)
        return lane


def _bytes(tensor: Tensor) -> Bytes:
    rows = tensor if tensor.dim() == 2 else tensor.view(len(tensor), -1)
    return rows.view(torch.uint8).numpy() if rows.numel() else np.empty((len(tensor), 0), np.uint8)
