"""Sums of rows of one width to the model's width: a linear map without bias for each feature.

Source: mixed dimension embeddings (Ginart et al., 2019), as in DLRM's reference code: a projection for each table.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Projection(nn.Module):
    """Weights that nobody has drawn yet, see `mlp.draw_weights`."""

    def __init__(self, num_features: int, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_features, width_in, width_out))

    def forward(self, pooled_BFD: Tensor) -> Tensor:
        """Return float32 [B, F, width_out]."""
        return torch.bmm(pooled_BFD.transpose(0, 1), self.weight).transpose(0, 1)
