"""A user's history and an item through attention, beside whatever else is known of the example, to one logit.

Shapes: B examples, N dense features, D = width of the rows of history and item.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ett.errors import ConfigError
from ett.trainer.config import ModelConfig
from ett.trainer.dense.hstu import HstuEncoder
from ett.trainer.dense.mlp import draw_weights, mlp
from ett.trainer.dense.precision import Precision, computing_in
from ett.trainer.dense.seeded_dropout import SeededDropout
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_outputs import SparseInputs


class SequenceModel(nn.Module):
    """An HSTU encoder; its result, the item's own row, pooled features and dense ones go through the top MLP."""

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

        Raises: ConfigError: history and item are not two features whose rows come one by one, of one width.
        """
        super().__init__()
        self._precision, self._history, self._item = precision, config.history, config.item
        width = _common_width(config, embeddings.sequences)
        self.ebc = embeddings
        self.dropout = SeededDropout(config.dropout)
        self.encoder = HstuEncoder(
            width,
            num_layers=config.attention_layers,
            num_heads=config.attention_heads,
            head_dim=config.attention_dim,
            window=config.attention_window,
        )
        self.bottom = mlp([num_dense, *config.bottom_mlp, width], ends_in_relu=True) if num_dense else None
        known = (2 + (num_dense > 0)) * width + sum(dim * len(features) for dim, features in embeddings.pooled)
        self.top = mlp([known, *config.top_mlp, 1], dropout=self.dropout)
        draw_weights(self, torch.Generator().manual_seed(seed))

    def forward(self, dense_BN: Tensor, sparse: SparseInputs) -> Tensor:
        """Return the logits, float32 [B]."""
        history, item_BD = sparse.sequences[self._history], sparse.sequences[self._item].values()
        with computing_in(self._precision, item_BD.device):
            known = [self.encoder(history.values(), history.lengths(), item_BD), item_BD]
            known += [sums.flatten(1) for sums in sparse.pooled]
            if self.bottom is not None:
                known.append(self.bottom(dense_BN))
            logits: Tensor = self.top(torch.cat(known, dim=1))
        return logits.squeeze(1).clone()  # of a view, fully_shard would warn


def _common_width(config: ModelConfig, sequences: dict[str, int]) -> int:
    named = {"model.history": config.history, "model.item": config.item}
    for key, feature in named.items():
        if feature not in sequences:
            raise ConfigError(
                f"model.kind is {config.kind!r}, and {key} is {feature!r}, whose rows do not come one by one",
                expected=f"one of {', '.join(sequences)}" if sequences else "a feature of a table with pooling none",
                do='[sparse.tables.item] features = ["item_id", "history"], pooling = "none" gives both one table',
            )
    others = sorted(set(sequences) - set(named.values()))
    if others or config.history == config.item or sequences[config.history] != sequences[config.item]:
        raise ConfigError(
            f"model.kind is {config.kind!r}, and rows come one by one of {', '.join(sequences)}",
            expected=f"that of a history ({config.history!r}) and an item ({config.item!r}), of one width, alone",
            do="set the pooling of the other tables to sum or mean",
        )
    return sequences[config.item]
