"""How a model crosses its feature vectors: dot products of all pairs (DLRM), or low-rank crosses (DCN-v2).

Shapes: B examples, V feature vectors (one of the dense features, one a table), D elements each, W = V * D.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ett.trainer.config import ModelConfig
from ett.trainer.dense.distinct_gather import gather_distinct
from ett.trainer.dense.precision import UndrawnLinear


class DotInteraction(nn.Module):
    """The first vector, and the dot products of all pairs of vectors: the part below the diagonal, row by row."""

    def __init__(self, num_vectors: int, dim: int) -> None:
        super().__init__()
        self.width = dim + num_vectors * (num_vectors - 1) // 2
        lower = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self._pairs: Tensor
        self.register_buffer("_pairs", lower[0] * num_vectors + lower[1], persistent=False)

    def forward(self, vectors_BVD: Tensor) -> Tensor:
        products_BVV = vectors_BVD @ vectors_BVD.transpose(1, 2)
        pairs = gather_distinct(products_BVV.flatten(1), self._pairs, 1)
        return torch.cat((vectors_BVD[:, 0], pairs), dim=1)


class LowRankCross(nn.Module):
    """x[l+1] = x[0] * (W[l] (V[l] x[l]) + b[l]) + x[l] over the vectors side by side.

    Source: DCN V2 (Wang et al., 2021), equation 2 with rank-r W; the form of MLPerf's DLRM-DCNv2.
    """

    def __init__(self, num_vectors: int, dim: int, num_layers: int, rank: int) -> None:
        super().__init__()
        self.width = num_vectors * dim
        self.down = nn.ModuleList(UndrawnLinear(self.width, rank, bias=False) for _ in range(num_layers))
        self.up = nn.ModuleList(UndrawnLinear(rank, self.width) for _ in range(num_layers))

    def forward(self, vectors_BVD: Tensor) -> Tensor:
        first_BW = crossed_BW = vectors_BVD.flatten(1)
        for down, up in zip(self.down, self.up, strict=True):
            crossed_BW = torch.addcmul(crossed_BW, first_BW, up(down(crossed_BW)))
        return crossed_BW


def interaction(config: ModelConfig, num_vectors: int) -> DotInteraction | LowRankCross:
    """Return what config.kind names."""
    if config.kind == "dcn_v2":
        return LowRankCross(num_vectors, config.embedding_dim, config.cross_layers, config.cross_rank)
    return DotInteraction(num_vectors, config.embedding_dim)
