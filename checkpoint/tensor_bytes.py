"""Between torch tensors and the bytes in files: views wherever the memory allows it, never a conversion of values."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ett.checkpoint.buffer_pool import mapped
from ett.checkpoint.dtypes import ITEM_BYTES
from ett.errors import ConfigError

Bytes = NDArray[np.uint8]
SMALLEST_MAPPED_BYTES = 16 << 20
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def dtype_name(tensor: torch.Tensor, owner: str) -> str:
    """Return the stored name of a tensor's dtype. Raises: ConfigError: a dtype that the format does not hold."""
    if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
        raise ConfigError(
            f"{owner} is a {tensor.layout} tensor of {tensor.dtype}",
            expected="a strided tensor of " + ", ".join(ITEM_BYTES),
        )
    return _NAMES[tensor.dtype]


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """Return the tensor's memory as uint8 [bytes]; a view of a contiguous host tensor, else a copy."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a host tensor of any content. A large one is in huge pages: the first touch of its memory costs less."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < SMALLEST_MAPPED_BYTES:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(mapped(num_bytes)[:num_bytes]).view(dtype).reshape(shape)


def tensor_memory(tensor: torch.Tensor) -> Bytes:
    """Return the memory of a contiguous host tensor as uint8 [bytes], to be written to."""
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def bytes_tensor(data: Bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over the memory of `data`, uint8 [bytes], contiguous and writable."""
    if not data.size:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    return torch.from_numpy(data.reshape(-1)).view(TORCH_DTYPES[dtype]).reshape(shape)
