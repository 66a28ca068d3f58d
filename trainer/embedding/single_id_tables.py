"""The tables of a job by recipe, one id an example and table; `t` has its weight at `embedding_bags.t.weight`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ett.errors import ConfigError
from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import SparseConfig
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.exchange import Lookup, RowExchange
from ett.trainer.sparse.hashing import Ids, RowInit
from ett.trainer.sparse.row_optimizer import row_optimizer
from ett.trainer.sparse.row_rules import row_rules
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, Tiers

_BAGS = "embedding_bags"


class SingleIdTables(nn.Module):
    """Row-sharded tables with bags of one id.

    The lookup stands outside autograd, so that pooling and updates can happen elsewhere: the caller makes a leaf of
    the rows and gives its gradient back.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        config: SparseConfig,
        collectives: Collectives,
        *,
        seed: int,
        tiers: Tiers = IN_MEMORY,
    ) -> None:
        super().__init__()
        if len({table.embedding_dim for table in tables}) != 1:
            raise ConfigError(
                f"the tables have rows of {sorted({table.embedding_dim for table in tables})} elements",
                expected="one embedding_dim for all",
            )
        self.embedding_bags = nn.ModuleDict({t.name: _shard(t, config, collectives, seed, tiers) for t in tables})
        self.dim = tables[0].embedding_dim
        self.exchange = RowExchange(self.shards(), collectives)

    def shards(self) -> list[EmbeddingShard]:
        """Return this rank's part of every table, in the order of the tables."""
        return [shard for shard in self.embedding_bags.values() if isinstance(shard, EmbeddingShard)]

    def look_up(self, ids_FB: Ids, control: int = 0) -> Lookup:
        """Return the rows of a batch, see `RowExchange.look_up`; `pooled` shapes them for a model."""
        return self.exchange.look_up(ids_FB, control)

    def pooled(self, lookup: Lookup) -> Tensor:
        """Return float32 [B, F, dim], a new leaf that wants a gradient."""
        return lookup.rows_LD.view(-1, len(self.embedding_bags), self.dim).requires_grad_()


def _shard(
    table: EmbeddingBagConfig, config: SparseConfig, collectives: Collectives, seed: int, tiers: Tiers
) -> EmbeddingShard:
    name = f"{_BAGS}.{table.name}"
    return EmbeddingShard(
        name,
        RowInit(name, seed=seed, dim=table.embedding_dim, scale=config.init_scale),
        row_optimizer(config),
        dim=table.embedding_dim,
        num_rows=table.num_embeddings,
        rank=collectives.rank,
        world_size=collectives.world_size,
        rules=row_rules(config),
        tiers=tiers,
    )
