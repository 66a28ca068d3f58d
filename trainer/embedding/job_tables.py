"""The tables of a job by recipe: pooled bags and row sequences; `t` has its weight at `embedding_bags.t.weight`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from torch import nn

from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import SparseConfig
from ett.trainer.data.columns import Columns
from ett.trainer.embedding.table_config import EmbeddingBagConfig, check_tables
from ett.trainer.embedding.table_outputs import Slot, SparseInputs, TableOutputs, ids_of
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.exchange import Announced, Lookup, RowExchange
from ett.trainer.sparse.hashing import Ids, RowInit
from ett.trainer.sparse.row_optimizer import row_optimizer
from ett.trainer.sparse.row_rules import row_rules
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, Tiers

_BAGS = "embedding_bags"


class LookedUp:
    """The rows of one batch, outside autograd: `apply_gradients` takes the gradients that reach `inputs`."""

    def __init__(self, lookup: Lookup, outputs: Sequence[TableOutputs], rates_T: Sequence[float]) -> None:
        self._lookup, self._outputs, self._rates_T = lookup, outputs, rates_T
        found = [of_width.outputs() for of_width in outputs]
        self.inputs = SparseInputs(
            [pooled for pooled, _ in found if pooled is not None],
            {name: rows for _, sequences in found for name, rows in sequences.items()},
        )

    @property
    def control(self) -> int:
        """Return the bitwise or of all ranks' control words."""
        return self._lookup.control

    def start_update(self, factor: float) -> Callable[[], None]:
        """Update rows that a batch waits for with the gradients that came; what is returned updates the others.

        See `Lookup.start_update`. Args: factor: of every table's learning rate.
        """
        grads = [of_width.gradients() for of_width in self._outputs]
        return self._lookup.start_update(grads, [rate * factor for rate in self._rates_T])

    def apply_gradients(self, factor: float) -> None:
        """Update the rows with the gradients that came, see `start_update`."""
        self.start_update(factor)()

    def drop(self) -> None:
        """Say that no gradients will come: the rows stay as they are."""
        self._lookup.drop()


class JobTables(nn.Module):
    """Row-sharded tables; their rows may differ in width, and a table's features in how many ids an example has."""

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        config: SparseConfig | Mapping[str, SparseConfig],
        collectives: Collectives,
        *,
        seed: int,
        tiers: Tiers = IN_MEMORY,
        kept: Mapping[str, EmbeddingShard] = MappingProxyType({}),
    ) -> None:
        """Args: config: of all tables, or of each by its name. kept: this rank's part of tables, of an earlier life."""
        super().__init__()
        check_tables(tables)
        configs = config if isinstance(config, Mapping) else {table.name: config for table in tables}
        self.embedding_bags = nn.ModuleDict(
            {
                table.name: kept.get(table.name) or _shard(table, configs[table.name], collectives, seed, tiers)
                for table in tables
            }
        )
        self._tables = sorted(tables, key=lambda table: table.embedding_dim)
        self._rates_T = [configs[table.name].learning_rate for table in self._tables]
        shards = [shard for t in self._tables if isinstance(shard := self.embedding_bags[t.name], EmbeddingShard)]
        self.exchange = RowExchange(shards, collectives)
        self._slots = [
            [Slot(feature, table.pooling) for table in self._tables[width.tables] for feature in table.features]
            for width in self.exchange.widths
        ]

    @property
    def pooled(self) -> list[tuple[int, list[str]]]:
        """Return the width and the features of each of `SparseInputs.pooled`."""
        names = [[slot.feature for slot in slots if slot.is_pooled] for slots in self._slots]
        return [(width.dim, of_width) for width, of_width in zip(self.exchange.widths, names, strict=True) if of_width]

    @property
    def sequences(self) -> dict[str, int]:
        """Return the width of the rows of each feature of `SparseInputs.sequences`."""
        pairs = zip(self.exchange.widths, self._slots, strict=True)
        return {slot.feature: width.dim for width, slots in pairs for slot in slots if not slot.is_pooled}

    def shards(self) -> list[EmbeddingShard]:
        """Return this rank's part of every table, in the order of the tables."""
        return [shard for shard in self.embedding_bags.values() if isinstance(shard, EmbeddingShard)]

    def look_up(self, columns: Columns, control: int = 0) -> LookedUp:
        """Return the rows of a batch's features as they are now; every rank calls, see `RowExchange.look_up`."""
        return self._looked_up(self.exchange.look_up(self._ids(columns), control), columns)

    def announce(self, columns: Columns, control: int, collectives: Collectives) -> Announced:
        """See `RowExchange.announce`."""
        return self.exchange.announce(self._ids(columns), control, collectives)

    def complete(self, announced: Announced, columns: Columns) -> LookedUp:
        """See `RowExchange.complete`. Args: columns: those that were announced."""
        return self._looked_up(self.exchange.complete(announced), columns)

    def _looked_up(self, lookup: Lookup, columns: Columns) -> LookedUp:
        pairs = zip(self._slots, lookup.found, strict=True)
        return LookedUp(lookup, [TableOutputs(slots, columns, found) for slots, found in pairs], self._rates_T)

    def _ids(self, columns: Columns) -> list[Ids]:
        """Return each table's ids, those of its features after each other."""
        return [_joined([ids_of(columns[feature]) for feature in table.features]) for table in self._tables]


def _joined(parts: Sequence[Ids]) -> Ids:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
