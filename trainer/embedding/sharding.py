"""Which rank has which rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique

import numpy as np

from ett.errors import ConfigError
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.sparse.hashing import Ids, owner_key, row_owner, table_salt


@unique
class ShardingType(Enum):
    DATA_PARALLEL = "data_parallel"  # every rank has all rows, and updates them alike: small tables
    TABLE_WISE = "table_wise"  # one rank has all rows
    ROW_WISE = "row_wise"  # rank r has the r-th range of ids, all of one length but the last
    ROW_WISE_HASH = (
        "row_wise_hash"  # the owner of a row follows from a hash of its id; the only one for tables that grow
    )


@dataclass(frozen=True, slots=True)
class TableSharding:
    sharding_type: ShardingType
    rank: int = 0  # the owner, of a table-wise table


Plan = Mapping[str, TableSharding]


def row_wise_plan(tables: Sequence[EmbeddingConfig]) -> dict[str, TableSharding]:
    """Return: every table over all ranks, by range where ids have one, else by hash."""
    return {
        table.name: TableSharding(ShardingType.ROW_WISE_HASH if table.is_dynamic else ShardingType.ROW_WISE)
        for table in tables
    }


def table_wise_plan(tables: Sequence[EmbeddingConfig], world_size: int) -> dict[str, TableSharding]:
    """Return: each table on one rank, the widest first to the rank that has the least width times features."""
    load = [0] * world_size
    plan = {}
    for table in sorted(tables, key=lambda t: (-t.embedding_dim * t.num_features(), -t.num_embeddings, t.name)):
        rank = load.index(min(load))
        load[rank] += table.embedding_dim * table.num_features()
        plan[table.name] = TableSharding(ShardingType.TABLE_WISE, rank)
    return plan


def check_plan(plan: Plan, tables: Sequence[EmbeddingConfig], world_size: int) -> None:
    """Raise ConfigError where a plan does not fit the tables or the world."""
    if set(plan) != {table.name for table in tables}:
        raise ConfigError(
            f"the plan is for {sorted(plan)}", expected=f"each of the tables {sorted(table.name for table in tables)}"
        )
    for table in tables:
        sharding = plan[table.name]
        if not 0 <= sharding.rank < world_size:
            raise ConfigError(
                f"table {table.name} is planned for rank {sharding.rank}", expected=f"a rank below {world_size}"
            )
        if table.is_dynamic and sharding.sharding_type is not ShardingType.ROW_WISE_HASH:
            raise ConfigError(
                f"table {table.name} grows and is planned {sharding.sharding_type.value}", expected="row_wise_hash"
            )
        if table.init_fn is not None and world_size > 1 and sharding.sharding_type is not ShardingType.TABLE_WISE:
            raise ConfigError(
                f"table {table.name} has an init_fn and is planned {sharding.sharding_type.value}",
                expected="table_wise, so that one rank draws all rows",
                do="set weight_init_min and weight_init_max, which give each id its row on whichever rank",
            )


class RowOwners:
    """The owner of each id of one table."""

    def __init__(self, table: EmbeddingConfig, name: str, sharding: TableSharding, world_size: int) -> None:
        self.sharding, self._world_size = sharding, world_size
        self._key = owner_key(table_salt(name))
        self.block = max(1, -(-table.num_embeddings // world_size))
        self._num_rows = table.num_embeddings

    def rows_of(self, rank: int) -> range:
        """Return the ids that a rank has of a table with a fixed number of rows, not sharded by hash."""
        match self.sharding.sharding_type:
            case ShardingType.TABLE_WISE if self.sharding.rank != rank:
                return range(0)
            case ShardingType.ROW_WISE:
                return range(min(self._num_rows, rank * self.block), min(self._num_rows, (rank + 1) * self.block))
        return range(self._num_rows)

    def owners(self, ids: Ids) -> Ids:
        """Return the rank that has each id, int64 [N]; of a table that is on one rank or over all by row."""
        match self.sharding.sharding_type:
            case ShardingType.ROW_WISE:
                return ids // self.block
            case ShardingType.ROW_WISE_HASH:
                return row_owner(ids, self._key, self._world_size)
        return np.full(len(ids), self.sharding.rank)
