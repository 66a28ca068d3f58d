"""DLRM and DCN-v2: dense features through the bottom MLP, feature vectors crossed, top MLP to one logit.

Shapes: B examples, N dense features, F tables, D = embedding_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ett.trainer.config import ModelConfig
from ett.trainer.dense.interaction import interaction
from ett.trainer.dense.mlp import draw_weights, mlp
from ett.trainer.dense.precision import Precision, computing_in
from ett.trainer.dense.seeded_dropout import SeededDropout
from ett.trainer.embedding.single_id_tables import SingleIdTables


class Dlrm(nn.Module):
    """Either of the two, as config.kind says: they differ in how the vectors are crossed."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: SingleIdTables,
        *,
        num_dense: int,
        seed: int,
        precision: Precision = "float32",
    ) -> None:
        """Every rank builds the same dense weights from the seed. Args: precision: of what forward computes."""
        super().__init__()
        self._precision = precision
        self.ebc = embeddings
        self.dropout = SeededDropout(config.dropout)
        self.bottom = mlp([num_dense, *config.bottom_mlp, config.embedding_dim], ends_in_relu=True)
        self.interaction = interaction(config, 1 + len(embeddings.embedding_bags))
        self.top = mlp([self.interaction.width, *config.top_mlp, 1], dropout=self.dropout)
        draw_weights(self, torch.Generator().manual_seed(seed))

    def forward(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """Return the logits, float32 [B], of dense features float32 [B, N] and pooled rows float32 [B, F, D]."""
        with computing_in(self._precision, dense_BN.device):
            vectors_BVD = torch.cat((self.bottom(dense_BN).unsqueeze(1), pooled_BFD), dim=1)
            logits: Tensor = self.top(self.interaction(vectors_BVD))
        return logits.squeeze(1)
