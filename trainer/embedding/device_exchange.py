"""Tables in the memory of several devices: ids go to the ranks that have the rows, which pool; sums come back.

A lookup is the messages of `bag_exchange.py`, between devices: how many bags and ids, lengths, ids and their weights;
then sums; in the backward pass gradients. A bag whose rows are on several ranks is the sum of their sums in the order
of the ranks, and MEAN divides by the length of the whole bag where the bag is. An owner's bags stand in the order
(feature, rank, bag), that of the global batch, so given the same gradients no bit of an update depends on the number of
ranks. The host waits for the device once a batch, for the numbers of ids.

What is wrong with a batch is wrong on every rank: none updates a row, and each says so.

Shapes: B examples of this rank, F slots, L ids, W ranks, C columns of the slots that a rank has rows of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ett.errors import ConfigError
from ett.trainer.comm.collectives import Collectives
from ett.trainer.embedding.device_alarm import BatchReport
from ett.trainer.embedding.device_bags import BlockBags, DeviceBags, LookedUpBatch, check_features, in_slot_order
from ett.trainer.embedding.device_tables import Block
from ett.trainer.embedding.feature_ids import Slot
from ett.trainer.embedding.rank_tables import RankTables
from ett.trainer.embedding.sharding import ShardingType
from ett.trainer.jagged import KeyedJaggedTensor
from ett.trainer.jagged.segments import gather_segments

_ON_DEVICES = (ShardingType.ROW_WISE, ShardingType.TABLE_WISE)


def check_device_plan(tables: RankTables) -> None:
    """Raise ConfigError for a plan that tables in device memory do not have."""
    if tables.collectives.world_size == 1:
        return
    for config in tables.configs:
        kind = tables.plan[config.name].sharding_type
        if kind not in _ON_DEVICES:
            raise ConfigError(
                f"table {config.name} is planned {kind.value}, and its rows are in device memory",
                expected="row_wise or table_wise",
            )


@dataclass(frozen=True, slots=True)
class _Asked:
    """One batch: what all ranks ask of this one, and what this one needs to take the answer."""

    features: KeyedJaggedTensor  # of all ranks, for the tables here, ids counted from this rank's first
    batch_sizes: list[int]  # of each rank
    lengths_FB: Tensor  # of this rank's bags

    @property
    def batch_size(self) -> int:
        return self.lengths_FB.shape[1]


class SharedDeviceBags:
    """All slots of a collection whose tables are on the devices of several ranks; see `DeviceBags`."""

    def __init__(
        self, tables: RankTables, blocks: Sequence[Block], slots: Sequence[Slot], device: torch.device
    ) -> None:
        self._collectives: Collectives = tables.collectives
        self._slots, self._configs, self._device = list(slots), tables.configs, device
        self._places = _places(tables, slots, device)
        world = range(tables.collectives.world_size)
        self._slots_on = [[n for n, s in enumerate(slots) if tables.owners[s.table].rows_of(rank)] for rank in world]
        columns = [[range(s.column, s.column + s.dim) for s in (slots[n] for n in on)] for on in self._slots_on]
        self._columns_on = [
            torch.tensor([c for r in of_rank for c in r], dtype=torch.int64, device=device) for of_rank in columns
        ]
        self._keys = [f"{slots[n].feature} (of {tables.configs[slots[n].table].name})" for n in self._mine]
        self._own = DeviceBags(blocks, self._slots_here(), tables.configs, device=device, agree=self._agree)
        self._announced: deque[tuple[KeyedJaggedTensor, _Asked]] = deque()
        self._leaf = torch.zeros((), requires_grad=True)

    @property
    def blocks(self) -> Sequence[BlockBags]:
        return self._own.blocks

    def prefetch(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> None:
        """Have the ids exchanged and the rows of a batch on their way; every rank calls."""
        asked = self._ask(features, is_weighted=is_weighted)
        self._own.prefetch(asked.features, is_weighted=is_weighted)
        self._announced.append((features, asked))

    def pooled(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> Tensor:
        """Return float32 [B, C] of all slots; every rank calls, and its batch may be empty.

        Raises: see `DeviceBags.pooled`; ConfigError: weights of ids want a gradient.
        """
        if is_weighted and features.weights().requires_grad:
            raise ConfigError(
                "weights of ids want a gradient, and tables are sharded",
                expected="weights that are data, or tables of one rank",
            )
        is_next = bool(self._announced) and self._announced[0][0] is features
        if self._announced and not is_next and torch.is_grad_enabled():
            raise ConfigError(
                "a batch was prefetched, and another one is looked up",
                expected="the very features that were given to prefetch, in the same order",
            )
        asked = self._announced[0][1] if is_next else self._ask(features, is_weighted=is_weighted)
        own = self._own.look_up(asked.features, is_weighted=is_weighted)
        if is_next:  # not before: a lookup that told of an earlier batch may be tried again
            self._announced.popleft()
        out: Tensor = _Pool.apply(self, asked, own, self._leaf)  # type: ignore[no-untyped-call]
        return out

    def check(self) -> None:
        self._own.check()

    def values(self, asked: _Asked, own: Tensor | LookedUpBatch) -> Tensor:
        """Answer the other ranks, and return the sums of their answers."""
        if not self.blocks:
            answer = torch.empty(0, device=self._device)
        else:
            answer = own if isinstance(own, Tensor) else self._own.values(own)
        received = self._collectives.all_to_all(answer.reshape(-1), self._sizes_asked(asked), self._sizes_sent(asked))
        out = torch.zeros(asked.batch_size, sum(slot.dim for slot in self._slots), device=self._device)
        parts = torch.split(received, self._sizes_sent(asked))
        for columns, part in zip(self._columns_on, parts, strict=True):
            out.index_add_(1, columns, part.view(asked.batch_size, len(columns)))
        return self._divided(asked, out)

    def apply_gradients(self, asked: _Asked, own: LookedUpBatch, grads_BC: Tensor) -> None:
        grads_BC = self._divided(asked, grads_BC)
        sent = torch.cat([grads_BC.index_select(1, columns).reshape(-1) for columns in self._columns_on])
        received = self._collectives.all_to_all(sent, self._sizes_sent(asked), self._sizes_asked(asked))
        width = len(self._columns_on[self._collectives.rank])
        self._own.apply_gradients(own, received.view(sum(asked.batch_sizes), width))

    @property
    def _mine(self) -> list[int]:
        return self._slots_on[self._collectives.rank]

    def _slots_here(self) -> list[Slot]:
        """Return the slots of this rank as the tables here see them: side by side, and never divided."""
        here, column = [], 0
        for number, key in zip(self._mine, self._keys, strict=True):
            slot = self._slots[number]
            here.append(replace(slot, feature=key, column=column, is_mean=False))
            column += slot.dim
        return here

    def _sizes_asked(self, asked: _Asked) -> list[int]:
        width = len(self._columns_on[self._collectives.rank])
        return [width * size for size in asked.batch_sizes]

    def _sizes_sent(self, asked: _Asked) -> list[int]:
        return [len(columns) * asked.batch_size for columns in self._columns_on]

    def _ask(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> _Asked:
        """Send ids to the ranks that have the rows, and take those of others."""
        check_features(features, self._slots, self._configs, self._device)
        ids_L, lengths, weights_L, _ = in_slot_order(features, self._slots, is_weighted=is_weighted)
        num_slots, batch_size, world_size = len(self._slots), features.stride(), self._collectives.world_size
        bag_of_L = torch.repeat_interleave(lengths, output_size=len(ids_L))
        owner_L, ids_L = self._places.of(ids_L, bag_of_L // max(1, batch_size))
        order_L = torch.sort(owner_L.to(torch.int16), stable=True).indices
        lengths_W = torch.zeros(world_size * len(lengths), dtype=torch.int64, device=self._device)
        lengths_W.scatter_add_(0, owner_L * len(lengths) + bag_of_L, torch.ones_like(owner_L))
        lengths_WFB = lengths_W.view(world_size, num_slots, batch_size)
        counts = lengths_WFB.sum((1, 2)).tolist()  # the host waits here
        told = self._collectives.exchange_words(torch.tensor([[batch_size, count] for count in counts])).tolist()
        batch_sizes, counts_here = [size for size, _ in told], [count for _, count in told]
        parts = [of_rank[on].reshape(-1) for of_rank, on in zip(lengths_WFB, self._slots_on, strict=True)]
        sizes_here = [len(self._mine) * size for size in batch_sizes]
        all_lengths = self._collectives.all_to_all(torch.cat(parts), [len(part) for part in parts], sizes_here)
        all_ids = self._collectives.all_to_all(ids_L[order_L], counts, counts_here)
        all_weights = None
        if weights_L is not None:
            all_weights = self._collectives.all_to_all(weights_L[order_L], counts, counts_here)
        merged = self._merged(all_ids, all_weights, all_lengths, batch_sizes)
        return _Asked(merged, batch_sizes, lengths.view(num_slots, batch_size))

    def _merged(
        self, ids: Tensor, weights: Tensor | None, lengths: Tensor, batch_sizes: Sequence[int]
    ) -> KeyedJaggedTensor:
        """Return bags in the order (slot, rank, bag); they come in that of (rank, slot, bag)."""
        num_slots, begin, numbers = len(self._mine), 0, []
        for size in batch_sizes:
            numbers.append(torch.arange(begin, begin + num_slots * size, device=self._device).view(num_slots, size))
            begin += num_slots * size
        bags = torch.cat(numbers, dim=1).view(-1)
        positions = gather_segments(lengths, bags, num_values=len(ids))
        weights = None if weights is None else weights[positions]
        return KeyedJaggedTensor(self._keys, ids[positions], weights, lengths[bags], stride=sum(batch_sizes))

    def _divided(self, asked: _Asked, values_BC: Tensor) -> Tensor:
        """Divide the columns of MEAN slots by the lengths of whole bags."""
        if not any(slot.is_mean for slot in self._slots):
            return values_BC
        values_BC = values_BC.clone()
        for slot, lengths_B in zip(self._slots, asked.lengths_FB, strict=True):
            if slot.is_mean:
                values_BC[:, slot.column : slot.column + slot.dim] /= lengths_B.clamp(min=1).float()[:, None]
        return values_BC

    def _agree(self, report: BatchReport) -> None:
        """Count the ranks where something is wrong with the batch; on devices no host waits."""
        report.on_ranks.copy_((report.words[:-1] != 0).any())
        self._collectives.sum_in_place(report.on_ranks)()


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the rows of each slot's table are; int64 [F] all."""

    first_rank: Tensor
    last_part: Tensor  # the number of ranks that have rows, less one
    rows_each: Tensor

    def of(self, ids_L: Tensor, slot_of_L: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rank of each id and its number there; one out of range goes to a rank that will find it so."""
        rows_each = self.rows_each[slot_of_L]
        part = torch.div(ids_L, rows_each, rounding_mode="floor")
        part = torch.minimum(part.clamp(min=0), self.last_part[slot_of_L])
        return self.first_rank[slot_of_L] + part, ids_L - part * rows_each


def _places(tables: RankTables, slots: Sequence[Slot], device: torch.device) -> _Places:
    found = []
    for slot in slots:
        owners, num_rows = tables.owners[slot.table], tables.configs[slot.table].num_embeddings
        if owners.sharding.sharding_type is ShardingType.TABLE_WISE:
            found.append((owners.sharding.rank, 0, num_rows))
        else:
            found.append((0, (num_rows - 1) // owners.block, owners.block))
    return _Places(*torch.tensor(found, device=device).view(-1, 3).T.contiguous().unbind())


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: SharedDeviceBags, asked: _Asked, own: Tensor | LookedUpBatch, leaf: Tensor) -> Tensor:
        ctx.of, ctx.asked, ctx.own = of, asked, own
        return of.values(asked, own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads_BC: Tensor) -> tuple[None, ...]:
        ctx.of.apply_gradients(ctx.asked, ctx.own, grads_BC.contiguous())
        return None, None, None, None
