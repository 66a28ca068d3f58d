"""Memory of the host that grows in place: the pages are mapped elsewhere, nothing is copied, nothing is held twice."""

from __future__ import annotations

import mmap

import numpy as np
import torch
from torch import Tensor

_FIRST_ROWS = 64
# Pages are counted when they are used: by default the kernel refuses a mapping above all memory, used or not.
_NO_RESERVE = 0x4000  # MAP_NORESERVE, which mmap names from Python 3.13 on


class Arena:
    """`rows`: a tensor [capacity, width] whose rows start at zero; take it anew after every `reserve`.

    Address space is taken a quarter at a time; a page costs memory from its first use on.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype = width, dtype
        self._row_bytes = width * dtype.itemsize
        self._memory = _mapped(_FIRST_ROWS * self._row_bytes)
        self.rows = self._view(_FIRST_ROWS)

    def reserve(self, num_rows: int) -> None:
        """Have at least num_rows rows."""
        capacity = len(self.rows)
        if num_rows <= capacity:
            return
        while capacity < num_rows:
            capacity += capacity // 4
        old, num_old_rows = self.rows, len(self.rows)
        self.rows = torch.empty(0)
        del old
        try:
            self._memory.resize(capacity * self._row_bytes)
        except BufferError:  # somebody still looks at the old place, which then stays as it is
            before, self._memory = self._memory, _mapped(capacity * self._row_bytes)
            self._memory[: num_old_rows * self._row_bytes] = before[: num_old_rows * self._row_bytes]
        self.rows = self._view(capacity)

    def _view(self, capacity: int) -> Tensor:
        # By way of numpy, which tells the mapping that it is looked at; torch.frombuffer does not.
        taken = np.frombuffer(self._memory, np.uint8, count=capacity * self._row_bytes)
        return torch.from_numpy(taken).view(self._dtype).view(capacity, self._width)


def _mapped(num_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
