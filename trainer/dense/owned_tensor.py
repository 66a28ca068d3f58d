"""Arrays into tensors of our own."""

from __future__ import annotations

import torch
from torch import Tensor


def owned_tensor(array: object) -> Tensor:
    """Return a copy in memory that torch aligned: the last bit of a product may depend on where its input lies."""
    return torch.tensor(array)
