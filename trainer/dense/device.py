"""Where the dense part of a rank computes, and moving rows there and gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ett.errors import ConfigError

DeviceChoice = Literal["cpu", "cuda", "auto"]
CPU = torch.device("cpu")


def dense_device(choice: DeviceChoice, local_rank: int) -> torch.device:
    """Return this rank's device and make it current: ranks of a host take its CUDA devices in turn.

    Raises: ConfigError: CUDA is asked for, and there is none.
    """
    num_devices = torch.cuda.device_count() if choice != "cpu" else 0
    if choice == "cuda" and not num_devices:
        raise ConfigError(
            "dense.device is 'cuda', and torch finds no CUDA device",
            expected="a GPU, and a torch that is built for it",
            do='--set dense.device=cpu, or "auto" to take a GPU where there is one',
        )
    if not num_devices:
        return CPU
    device = torch.device("cuda", local_rank % num_devices)
    torch.cuda.set_device(device)
    return device


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on a device, copied from pinned memory beside the work there."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of a device in memory of the host; waits once for all of them."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors]
    torch.cuda.current_stream().synchronize()
    return copies
