"""The tables of one collection as one rank sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ett.errors import ConfigError, DataError
from ett.trainer.comm.collectives import Collectives
from ett.trainer.embedding.dense_rows import DenseRows, PlainRows
from ett.trainer.embedding.fused_optimizer import FusedParams, params_by_table
from ett.trainer.embedding.sharding import Plan, RowOwners, ShardingType, check_plan, row_wise_plan
from ett.trainer.embedding.table_config import EmbeddingConfig, check_tables
from ett.trainer.embedding.table_part import FoundRows, Groups, Summands, summed, update_groups, update_rows
from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_sums import RowSums


@dataclass(frozen=True, kw_only=True)
class RankTables:
    prefix: str  # of names in checkpoints: "embedding_bags" or "embeddings"
    configs: Sequence[EmbeddingConfig]
    collectives: Collectives
    plan: Plan
    params: Mapping[str, FusedParams] | None  # None: rows are parameters, and a torch optimizer trains them
    seed: int
    weights: Mapping[str, Tensor]  # rows that tables start with, instead of the initial ones
    learning_rates: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def checked(
        prefix: str,
        configs: Sequence[EmbeddingConfig],
        collectives: Collectives,
        *,
        plan: Plan | None,
        fused_params: FusedParams | Mapping[str, FusedParams] | None,
        weights: Mapping[str, Tensor] | None,
        seed: int,
    ) -> RankTables:
        """Raise ConfigError where tables, plan, optimizer settings and given rows do not fit each other."""
        check_tables(configs)
        _check_weights(weights or {}, configs, collectives.world_size)
        plan = row_wise_plan(configs) if plan is None else plan
        check_plan(plan, configs, collectives.world_size)
        params = params_by_table(fused_params, [table.name for table in configs])
        grows = [table.name for table in configs if table.is_dynamic]
        if params is None and (grows or collectives.world_size > 1):
            why = f"table {grows[0]} grows" if grows else f"{collectives.world_size} ranks share the rows"
            raise ConfigError(
                f"{why}, and no fused_params are given",
                expected="fused_params: such rows are updated in the backward pass",
            )
        rates = {} if params is None else {name: settings.learning_rate for name, settings in params.items()}
        return RankTables(
            prefix=prefix,
            configs=configs,
            collectives=collectives,
            plan=plan,
            params=params,
            seed=seed,
            weights=weights or {},
            learning_rates=rates,
        )

    @cached_property
    def parts(self) -> list[nn.Module]:
        """This rank's rows of each table."""
        return [self._part(number) for number in range(len(self.configs))]

    @cached_property
    def owners(self) -> list[RowOwners]:
        world_size = self.collectives.world_size
        return [RowOwners(c, f"{self.prefix}.{c.name}", self.plan[c.name], world_size) for c in self.configs]

    def is_local(self, table: int) -> bool:
        """Whether this rank has all rows, as every other rank has."""
        sharding = self.plan[self.configs[table].name].sharding_type
        return self.collectives.world_size == 1 or sharding is ShardingType.DATA_PARALLEL

    def set_learning_rate(self, learning_rate: float, table: str | None) -> None:
        """Set it for one table, or for all. Raises: ConfigError: there is no such table, or no fused optimizer."""
        names = list(self.learning_rates) if table is None else [table]
        if not self.learning_rates or not set(names) <= set(self.learning_rates):
            raise ConfigError(
                f"table {table!r} has no fused optimizer" if table else "these tables have no fused optimizer",
                expected="fused_params, and the name of a table",
            )
        self.learning_rates.update(dict.fromkeys(names, learning_rate))

    def one_learning_rate(self, names: Sequence[str]) -> float:
        """Return the learning rate of tables that are updated together. Raises: ConfigError: they have several."""
        rates = {name: self.learning_rates[name] for name in names}
        if len(set(rates.values())) > 1:
            raise ConfigError(
                f"tables of one block on a device have the learning rates {rates}",
                expected="one: they are updated together",
                do="give a table whose rate differs fused_params of its own",
            )
        return next(iter(rates.values()))

    def update(self, table: int, found: FoundRows, summands: Summands) -> None:
        """Update this rank's rows of a table that is sharded, or that one rank has alone."""
        update_rows(self.parts[table], found, summands, self.learning_rates[self.configs[table].name])

    def update_local(self, table: int, found: FoundRows, summands: Summands) -> None:
        """Update a table that every rank has: each rank's sums are added in the order of the ranks, on all of them."""
        if self.collectives.world_size == 1:
            self.update(table, found, summands)
            return
        mine = Groups.of(found.ids_L)
        sums = summed(summands.sums(mine, found.dim))
        ids = torch.cat(self.collectives.gather(torch.from_numpy(mine.ids_U))).numpy()
        rows = torch.cat(self.collectives.gather(sums))
        groups = Groups.of(ids)
        total = Summands(rows, found.dim, np.arange(len(ids))).sums(groups, found.dim)
        rate = self.learning_rates[self.configs[table].name]
        update_groups(self.parts[table], groups.ids_U, total, rate)

    def gradient(self, table: int, found: FoundRows, summands: Summands) -> Tensor:
        """Return the gradient of a table's weight, as dense as torch's own."""
        groups = Groups.of(found.ids_L)
        sums: RowSums = summands.sums(groups, found.dim)
        dense = torch.zeros_like(found.source)
        row_kernels.copy_rows(summed(sums), None, dense, groups.ids_U)
        return dense

    def raise_for_gradients(self, table: int, grads: Tensor) -> None:
        """Raise DataError where a table's gradient is not finite: nothing was updated then."""
        count = int((~torch.isfinite(grads)).sum())
        if count:
            raise DataError(
                f"table {self.configs[table].name}: {count} elements of the gradient are not finite",
                expected="finite gradients: training has diverged",
                do="lower the learning rates; the newest checkpoint is from before this step",
            )

    def _part(self, number: int) -> nn.Module:
        config, owners, rank = self.configs[number], self.owners[number], self.collectives.rank
        name, dim = f"{self.prefix}.{config.name}", config.embedding_dim
        low, high = config.get_weight_init_min(), config.get_weight_init_max()
        init = RowInit(name, seed=self.seed, dim=dim, scale=(high - low) / 2, middle=(high + low) / 2)
        given = self.weights.get(config.name)
        if self.params is None:
            part = PlainRows(init, dim=dim, ids=owners.rows_of(rank), given=given)
        elif owners.sharding.sharding_type is ShardingType.ROW_WISE_HASH:
            return EmbeddingShard(
                name,
                init,
                self.params[config.name].row_optimizer(),
                dim=dim,
                num_rows=0 if config.is_dynamic else config.num_embeddings,
                rank=rank,
                world_size=self.collectives.world_size,
            )
        else:
            part = DenseRows(
                name,
                init,
                self.params[config.name].row_optimizer(),
                dim=dim,
                ids=owners.rows_of(rank),
                is_exporter=rank == 0 or owners.sharding.sharding_type is not ShardingType.DATA_PARALLEL,
                given=given,
            )
        if config.init_fn is not None and given is None and len(part.weight):
            with torch.no_grad():
                config.init_fn(part.weight)
        return part


def _check_weights(weights: Mapping[str, Tensor], configs: Sequence[EmbeddingConfig], world_size: int) -> None:
    shapes = {c.name: (c.num_embeddings, c.embedding_dim) for c in configs if not c.is_dynamic}
    for name, rows in weights.items():
        if world_size > 1 or tuple(rows.shape) != shapes.get(name):
            raise ConfigError(
                f"rows of shape {tuple(rows.shape)} are given for table {name!r}, with {world_size} ranks",
                expected=f"one rank, and a table of a fixed size with its shape {shapes.get(name, '')}",
            )
        if rows.dtype != torch.float32 or rows.device.type != "cpu" or not rows.is_contiguous():
            raise ConfigError(
                f"the rows given for table {name!r} are {rows.dtype} on {rows.device}",
                expected="contiguous float32 in host memory",
            )
