"""TorchRec's `EmbeddingBagCollection`, over the tables of one rank or of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ett.errors import ConfigError
from ett.trainer.comm.collectives import Collectives, LocalCollectives
from ett.trainer.embedding.bag_exchange import BagExchange, ExchangedBags
from ett.trainer.embedding.bag_lookup import LocalBags, divide_by_lengths
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.embedding.device_bags import BlockBags, DeviceBags
from ett.trainer.embedding.device_exchange import SharedDeviceBags, check_device_plan
from ett.trainer.embedding.device_tables import Block, device_table, make_blocks, table_of_no_rows
from ett.trainer.embedding.feature_ids import FeatureIds, ids_of_slots, slots_of
from ett.trainer.embedding.fused_optimizer import FusedParams
from ett.trainer.embedding.rank_tables import RankTables
from ett.trainer.embedding.sharding import Plan
from ett.trainer.embedding.table_config import EmbeddingBagConfig, PoolingType, output_names
from ett.trainer.jagged import KeyedJaggedTensor, KeyedTensor


class EmbeddingBagCollection(nn.Module):
    """Pools the rows of each example's ids: KeyedJaggedTensor -> KeyedTensor.

    A table `t` of a fixed size has this rank's rows in the parameter `embedding_bags.t.weight`. With `fused_params` the
    backward pass updates rows and leaves no gradient; without (one rank, fixed sizes) any torch optimizer trains them.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: torch.device | None = None,
        *,
        fused_params: FusedParams | Mapping[str, FusedParams] | None = None,
        plan: Plan | None = None,
        collectives: Collectives | None = None,
        weights: Mapping[str, Tensor] | None = None,
        cache_params: CacheParams | None = None,
        seed: int = 0,
    ) -> None:
        """Make the tables; every row's first value follows from (seed, table, id) alone.

        Args:
            is_weighted: multiply each row by the weight of its id.
            device: where the rows are: host memory, or a CUDA device, for tables of a fixed size with `fused_params`,
                by range or table-wise. A batch must be there, too; what is wrong with it rises at a later call, or
                `check`.
            fused_params: optimizer of all tables, or of each.
            plan: where each table's rows are; without it all are sharded by row over the ranks of `collectives`.
            cache_params: with a CUDA device: rows are in host memory, and some of them in device memory.
            weights: rows that tables of one rank start with, float32 [num_embeddings, embedding_dim], without a copy.
        Raises: ConfigError: what was given does not fit together.
        """
        super().__init__()
        _refuse_unpooled(tables)
        self._is_weighted = is_weighted
        made_for = LocalCollectives() if collectives is None else collectives
        self._tables = RankTables.checked(
            "embedding_bags", list(tables), made_for, plan=plan, fused_params=fused_params, weights=weights, seed=seed
        )
        self._configs = list(tables)
        self._slots = slots_of(tables, [table.pooling is PoolingType.MEAN for table in tables])
        self._output_names = output_names(tables)
        self._on_device: DeviceBags | SharedDeviceBags | None = None
        self.blocks: list[Block] = []  # on the device
        if is_on_device(device):
            if torch.device(device).type == "cuda" and not torch.cuda.is_available():  # type: ignore[arg-type]
                raise ConfigError(
                    f"device is {device}, and torch finds no CUDA device", expected="a GPU, or tables in host memory"
                )
            where = torch.empty(0, device=device).device  # "cuda" is "cuda:0", or whichever is current
            self._make_on(where, weights, cache_params, seed)
            return
        if cache_params is not None:
            raise ConfigError(
                f"cache_params are given, and device is {device}", expected="a CUDA device, or no cache_params"
            )
        self.embedding_bags = nn.ModuleDict(dict(zip(self._names(), self._tables.parts, strict=True)))
        self._exchanged = [n for n, slot in enumerate(self._slots) if not self._tables.is_local(slot.table)]
        self._exchange = BagExchange(self._tables, [self._slots[n] for n in self._exchanged])

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Return each feature's pooled rows side by side; every rank calls, and its batch may be empty.

        Raises: DataError: an id is out of its table's range. ConfigError: a feature is missing.
        """
        if self._on_device is not None:
            values = self._on_device.pooled(features, is_weighted=self._is_weighted)
            return KeyedTensor(self._output_names, [slot.dim for slot in self._slots], values)
        found = ids_of_slots(features, self._slots, self._configs, is_weighted=self._is_weighted)
        weights = features.weights() if self._is_weighted else None
        if weights is not None and weights.requires_grad and self._exchanged:
            raise ConfigError(
                "weights of ids want a gradient, and tables are sharded",
                expected="weights that are data, or tables that every rank has",
            )
        lookup = _BagLookup(self, features, found)
        values = _Pool.apply(lookup, weights, *self._leaves())  # type: ignore[no-untyped-call]
        return KeyedTensor(self._output_names, [slot.dim for slot in self._slots], values)

    def check(self) -> None:
        """Wait for the device, if the rows are on one.

        Raises: DataError: a batch had an id out of range or a gradient that is not finite; it changed no row.
            ConfigError: nor did one that had no room in the cache.
        """
        if self._on_device is not None:
            self._on_device.check()

    def prefetch(self, features: KeyedJaggedTensor) -> None:
        """Have the rows of a later batch on their way into the cache, beside training; nothing without a cache.

        Batches are then looked up in the order of their prefetch, each by the same object. The rows of those batches
        and of the one that trains must fit in the cache.
        """
        if self._on_device is not None:
            self._on_device.prefetch(features, is_weighted=self._is_weighted)

    def flush(self) -> None:
        """Wait for the device, and have every row in host memory up to date; `state_dict` and exports do it first."""
        for block in self.blocks:
            if block.cache is not None:
                block.cache.flush()

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        return self._configs

    def is_weighted(self) -> bool:
        return self._is_weighted

    def set_learning_rate(self, learning_rate: float, table: str | None = None) -> None:
        """Set the learning rate of the next updates, of one table or of all."""
        before = dict(self._tables.learning_rates)
        self._tables.set_learning_rate(learning_rate, table)
        blocks: Sequence[BlockBags] = [] if self._on_device is None else self._on_device.blocks
        try:
            rates = [self._tables.one_learning_rate(block.table_names) for block in blocks]
        except ConfigError:
            self._tables.learning_rates.update(before)
            raise
        for block, rate in zip(blocks, rates, strict=True):
            block.learning_rate = rate

    def fused_state(self) -> dict[str, Tensor]:
        """Return this rank's optimizer state by TorchRec's names, such as `t.momentum1`, sharing memory."""
        self.flush()
        return fused_state(self.embedding_bags)

    def _make_on(
        self, device: torch.device, weights: Mapping[str, Tensor] | None, cache: CacheParams | None, seed: int
    ) -> None:
        params = self._tables.params
        if params is None or weights:
            raise ConfigError(
                f"device is {device}, and {'rows are given' if weights else 'no fused_params are given'}",
                expected="fused_params and initial rows by id for tables in device memory",
            )
        check_device_plan(self._tables)
        ids = [owners.rows_of(self._tables.collectives.rank) for owners in self._tables.owners]
        self.blocks = make_blocks(self._configs, params, device, cache, ids)
        made = {
            n: table_of_no_rows("embedding_bags", self._configs[n], params[self._configs[n].name], device, seed=seed)
            for n, rows in enumerate(ids)
            if not rows
        }
        for block in self.blocks:
            made |= {
                n: device_table("embedding_bags", self._configs[n], block, at, seed=seed)
                for at, n in enumerate(block.tables)
            }
        for number, config in enumerate(self._configs):
            if config.init_fn is not None and ids[number]:
                with torch.no_grad():
                    config.init_fn(made[number].weight)
        if self._tables.collectives.world_size == 1:
            self._on_device = DeviceBags(self.blocks, self._slots, self._configs, device=device)
        else:
            self._on_device = SharedDeviceBags(self._tables, self.blocks, self._slots, device)
        self.embedding_bags = nn.ModuleDict({c.name: made[number] for number, c in enumerate(self._configs)})

    def _names(self) -> list[str]:
        return [config.name for config in self._configs]

    def _leaves(self) -> list[Tensor]:
        """What autograd sees as the inputs: parameters, or something that makes it call backward."""
        if self._tables.params is None:
            return list(self.embedding_bags.parameters())
        return [torch.zeros((), requires_grad=True)]


class _BagLookup:
    """One batch of one collection: pooled forward, and once backward."""

    def __init__(
        self, collection: EmbeddingBagCollection, batch: KeyedJaggedTensor, features: list[FeatureIds]
    ) -> None:
        self._of, self._batch, self._features = collection, batch, features
        self._local: list[LocalBags] = []
        self._exchanged: ExchangedBags | None = None

    def pooled(self) -> Tensor:
        tables, slots = self._of._tables, self._of._slots
        num_bags = self._batch.stride()
        out_BC = torch.empty(num_bags, sum(slot.dim for slot in slots))
        for table in range(len(tables.configs)):
            mine = [n for n, slot in enumerate(slots) if slot.table == table]
            if tables.is_local(table):
                parts = [slots[n] for n in mine], [self._features[n] for n in mine]
                self._local.append(LocalBags.pooled_into(tables, table, *parts, out_BC))
        if not self._of._exchanged:
            return out_BC
        exchanged = [self._features[n] for n in self._of._exchanged]
        self._exchanged = self._of._exchange.look_up(exchanged, num_bags, out_BC)
        divide_by_lengths(out_BC, [slots[n] for n in self._of._exchanged], exchanged)
        return out_BC

    def apply_gradients(self, grads_BC: Tensor) -> list[Tensor | None]:
        """Update rows, or return the gradient of each parameter."""
        tables, slots = self._of._tables, self._of._slots
        if not bool(torch.isfinite(grads_BC.sum())):  # one pass over all; which table it is is found if it must be
            for slot in slots:
                tables.raise_for_gradients(slot.table, grads_BC[:, slot.column : slot.column + slot.dim])
        if tables.params is None:
            return [tables.gradient(bags.table, bags.found, bags.summands(grads_BC)) for bags in self._local]
        if self._exchanged is not None:
            self._exchanged.apply_gradients(grads_BC)
        for bags in self._local:
            tables.update_local(bags.table, bags.found, bags.summands(grads_BC))
        return [None]

    def divided(self, grads_BC: Tensor) -> Tensor:
        """Return the gradients of the sums: contiguous, and those of MEAN divided; a copy if anything changes."""
        grads_BC = grads_BC.contiguous()
        if any(slot.is_mean for slot in self._of._slots):
            grads_BC = grads_BC.clone()
            divide_by_lengths(grads_BC, self._of._slots, self._features)
        return grads_BC

    def weight_gradients(self, grads_BC: Tensor) -> Tensor:
        """Return the gradient of all weights of the batch."""
        total = torch.zeros_like(self._batch.weights(), dtype=torch.float32)
        places, ends = self._batch.index_per_key(), self._batch.offset_per_key()
        for bags in self._local:
            for slot, grads in zip(bags.slots, bags.weight_gradients(grads_BC), strict=True):
                key = places[slot.feature]
                total[ends[key] : ends[key + 1]] += grads
        return total


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lookup: _BagLookup, weights: Tensor | None, *leaves: Tensor) -> Tensor:
        ctx.lookup = lookup
        return lookup.pooled()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads_BC: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.lookup.divided(grads_BC)
        of_weights = ctx.lookup.weight_gradients(grads) if ctx.needs_input_grad[1] else None
        return None, of_weights, *ctx.lookup.apply_gradients(grads)


def _refuse_unpooled(tables: Sequence[EmbeddingBagConfig]) -> None:
    for table in tables:
        if table.pooling is PoolingType.NONE:
            raise ConfigError(
                f"table {table.name}: pooling is NONE", expected="SUM or MEAN", do="use an EmbeddingCollection"
            )


def is_on_device(device: torch.device | str | None) -> bool:
    """Return whether it is a CUDA device. Raises: ConfigError: it is neither that nor host memory."""
    kind = "cpu" if device is None else torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device}", expected="cpu or cuda")
    return kind == "cuda"


def check_device(device: torch.device | str | None) -> None:
    """Raise ConfigError for another place than host memory."""
    if device is not None and torch.device(device).type != "cpu":
        raise ConfigError(f"device is {device}", expected="cpu: tables are in host memory")


def fused_state(parts: nn.ModuleDict) -> dict[str, Tensor]:
    """Return the optimizer states of tables with a fixed number of rows; those of width 1 have one dimension."""
    states = {}
    for name, part in parts.items():
        for state, rows in getattr(part, "state_rows", {}).items():
            states[f"{name}.{state}"] = rows.view(-1) if rows.shape[1] == 1 else rows
    return states
