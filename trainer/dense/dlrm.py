"""DLRM and DCN-v2: dense features through the bottom MLP, feature vectors crossed, top MLP to one logit.

Shapes: B examples, N dense features, F features with rows of one width, D = embedding_dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ett.errors import ConfigError
from ett.trainer.config import ModelConfig
from ett.trainer.dense.compiled_logits import CompiledLogits
from ett.trainer.dense.interaction import interaction
from ett.trainer.dense.mlp import draw_weights, mlp, through
from ett.trainer.dense.precision import Precision, computing_in
from ett.trainer.dense.projection import Projection
from ett.trainer.dense.seeded_dropout import SeededDropout
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_outputs import SparseInputs


class Dlrm(nn.Module):
    """Either of the two, as config.kind says: they differ in how the vectors are crossed."""

    def __init__(
        self,
        config: ModelConfig,
        embeddings: JobTables,
        *,
        num_dense: int,
        seed: int,
        precision: Precision = "float32",
    ) -> None:
        """Every rank builds the same dense weights from the seed.

        Args: precision: of what forward computes.
        Raises: ConfigError: a table's rows are not pooled.
        """
        super().__init__()
        self._precision = precision
        if embeddings.sequences:
            raise ConfigError(
                f"model.kind is {config.kind!r}, and the rows of {', '.join(embeddings.sequences)} are not pooled",
                expected="one vector an example and feature",
                do="set the pooling of their tables to sum or mean, or choose a sequence model",
            )
        self.ebc = embeddings
        self.dropout = SeededDropout(config.dropout)
        self.bottom = mlp([num_dense, *config.bottom_mlp, config.embedding_dim], ends_in_relu=True)
        widths = embeddings.pooled
        self.interaction = interaction(config, 1 + sum(len(features) for _, features in widths))
        self.top = mlp([self.interaction.width, *config.top_mlp, 1], dropout=self.dropout)
        dim = config.embedding_dim
        self.projections = nn.ModuleList(
            nn.Identity() if width == dim else Projection(len(features), width, dim) for width, features in widths
        )
        draw_weights(self, torch.Generator().manual_seed(seed))
        self._dropped = config.top_mlp
        self._compiled: CompiledLogits | None = None

    def compile_for(self, num_examples: int) -> None:
        """Have training's passes computed by torch.compile, for at most so many examples; scoring is as before."""
        self._compiled = CompiledLogits(Dlrm.logits, num_examples)

    def forward(self, dense_BN: Tensor, sparse: SparseInputs) -> Tensor:
        """Return the logits, float32 [B], of dense features float32 [B, N] and pooled rows."""
        if self._compiled is not None and self.training:
            masks = self.dropout.masks(len(dense_BN), self._dropped, dense_BN.device)
            return self._compiled(self, dense_BN, sparse.pooled, masks)
        return self.logits(dense_BN, sparse.pooled)

    def logits(self, dense_BN: Tensor, pooled: Sequence[Tensor], masks: Sequence[Tensor] | None = None) -> Tensor:
        """Return the logits, float32 [B], from pooled rows float32 [B, F, D] of each width.

        Args: masks: of the dropout, drawn already; None: it draws them.
        """
        with computing_in(self._precision, dense_BN.device):
            vectors = [project(sums) for project, sums in zip(self.projections, pooled, strict=True)]
            vectors_BVD = torch.cat((self.bottom(dense_BN).unsqueeze(1), *vectors), dim=1)
            crossed = self.interaction(vectors_BVD)
            logits: Tensor = self.top(crossed) if masks is None else through(self.top, crossed, masks)
        return logits.squeeze(1).clone()  # of a view, fully_shard would warn
