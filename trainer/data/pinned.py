"""Arrays in pinned memory, from which a copy to a CUDA device runs beside the work there."""

from __future__ import annotations

import sys
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

S = TypeVar("S", bound=np.generic)


def pinned(array: NDArray[S]) -> NDArray[S]:
    """Return a copy in pinned memory, or the array itself where no CUDA device is there or torch is not loaded.

    The copy is torch's memory: `torch.from_numpy` of it is a pinned tensor.
    """
    torch = sys.modules.get("torch")
    if torch is None or not array.size or not torch.cuda.is_available():
        return array
    copy: NDArray[S] = torch.from_numpy(array).pin_memory().numpy()
    return copy
