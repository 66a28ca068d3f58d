"""Rows in the host's memory that a CUDA device reads and writes by itself, over the link."""

from __future__ import annotations

import mmap
import weakref

import numpy as np
import torch
from torch import Tensor

from ett.errors import ConfigError


def mapped_rows(tables: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return rows of zeros in host memory; what lies in it stays in physical memory as long as the tensor lives.

    Args: tables: whose rows they are, for errors.
    Raises: ConfigError: the host has not so much memory, or the device cannot map it.
    """
    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype)
    num_bytes = shape[0] * shape[1] * dtype.itemsize
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as err:
        raise _refused(tables, num_bytes, str(err)) from err
    memory.madvise(mmap.MADV_HUGEPAGE)  # fewer translations for the device to look up
    flat = np.frombuffer(memory, np.uint8)
    rows = torch.from_numpy(flat).view(dtype).view(shape)
    rows.zero_()  # by all threads; pages that nobody has touched would be mapped one by one
    with torch.cuda.device(device):
        status = torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), num_bytes, 0)  # type: ignore[no-untyped-call]
    if status != torch.cuda.cudart().cudaError.success:  # type: ignore[no-untyped-call]
        raise _refused(tables, num_bytes, str(status))
    # Of the array, which the tensor holds: the mapping itself tells of its end when it is gone already.
    weakref.finalize(flat, _unmap, rows.data_ptr(), device).atexit = False
    return rows


def _unmap(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _refused(tables: str, num_bytes: int, why: str) -> ConfigError:
    return ConfigError(
        f"{tables}: {num_bytes} bytes of host memory for rows below a cache could not be mapped: {why}",
        expected="that much memory that may be locked",
        do="give the job more memory, or shard the tables over more hosts",
    )
