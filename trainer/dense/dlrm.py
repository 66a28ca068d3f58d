"""DLRM: dense features through the bottom MLP, dot products of all pairs of feature vectors, top MLP to one logit.

Shapes: B examples, N dense features, F tables, D = embedding_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ett.trainer.config import ModelConfig
from ett.trainer.dense.seeded_dropout import SeededDropout
from ett.trainer.sparse.embedding_bag import EmbeddingBagCollection


class Dlrm(nn.Module):
    def __init__(self, config: ModelConfig, embeddings: EmbeddingBagCollection, *, num_dense: int, seed: int) -> None:
        """Every rank builds the same dense weights from the seed."""
        super().__init__()
        self.ebc = embeddings
        num_vectors = 1 + len(embeddings.embedding_bags)
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.dropout = SeededDropout(config.dropout)
        self.bottom = _mlp([num_dense, *config.bottom_mlp, config.embedding_dim], ends_in_relu=True)
        self.top = _mlp([config.embedding_dim + num_pairs, *config.top_mlp, 1], dropout=self.dropout)
        _draw_weights(self, torch.Generator().manual_seed(seed))
        # Of the symmetric [B, V, V] products, the part below the diagonal, row by row.
        lower = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("_pairs", lower[0] * num_vectors + lower[1], persistent=False)

    def forward(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """Return the logits, float32 [B], of dense features float32 [B, N] and pooled rows float32 [B, F, D]."""
        bottom_BD = self.bottom(dense_BN)
        vectors_BVD = torch.cat((bottom_BD.unsqueeze(1), pooled_BFD), dim=1)
        products_BVV = vectors_BVD @ vectors_BVD.transpose(1, 2)
        pairs = _Gather.apply(products_BVV.flatten(1), self._pairs)  # type: ignore[no-untyped-call]
        logits: Tensor = self.top(torch.cat((bottom_BD, pairs), dim=1))
        return logits.squeeze(1)


def _draw_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the linear layers as torch does by default, but from a generator that nothing else uses."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            nn.init.uniform_(module.bias, -bound, bound, generator=generator)


class _Gather(torch.autograd.Function):
    """index_select of distinct columns: its gradient is a plain copy, where autograd's own would add serially."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.width = rows.shape[1]
        return rows.index_select(1, columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (columns,) = ctx.saved_tensors
        spread = grad.new_zeros((len(grad), ctx.width))
        return spread.index_copy_(1, columns, grad), None


def _mlp(widths: Sequence[int], *, dropout: SeededDropout | None = None, ends_in_relu: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    last = len(widths) - 2
    for i in range(last + 1):
        linear = nn.utils.skip_init(nn.Linear, widths[i], widths[i + 1])  # type: ignore[no-untyped-call]
        layers.append(linear)  # Dlrm draws its weights
        if i < last or ends_in_relu:
            layers.append(nn.ReLU())
        if i < last and dropout is not None:
            layers.append(dropout)
    return nn.Sequential(*layers)
