"""Pooled lookup of tables in device memory, and their update in the backward pass, without a wait for the device.

What is wrong with a batch is found on the device: an id out of range, a gradient that is not finite. Such a batch
changes no row, and the error rises at the next call, or at `check`, which waits.

Shapes: B examples, F features of a block, L ids, D elements of a row; bag f * B + b is example b in feature f.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ett.errors import ConfigError, DataError
from ett.trainer.embedding.batches_ahead import BatchesAhead, Flight
from ett.trainer.embedding.device_alarm import BatchReport, DeviceAlarm, WrongBatch
from ett.trainer.embedding.device_cache import WEIGHT
from ett.trainer.embedding.device_tables import Block
from ett.trainer.embedding.feature_ids import Slot, whole_ids
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.jagged import KeyedJaggedTensor
from ett.trainer.jagged.segments import gather_segments, offsets_of
from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.rows import apply_gradients, count_not_finite, gather_rows, locate_rows, pool_rows
from ett.trainer.kernels.segments import RowGradients, Segments, segments_of


class DeviceBags:
    """All slots of a collection whose tables are on one device."""

    def __init__(
        self,
        blocks: Sequence[Block],
        slots: Sequence[Slot],
        configs: Sequence[EmbeddingConfig],
        *,
        device: torch.device,
        agree: Callable[[BatchReport], None] | None = None,
    ) -> None:
        """Args: agree: has `report.on_ranks` counted before rows are updated, where several ranks share the tables."""
        self._slots, self._configs, self._device, self._agree = slots, configs, device, agree
        self.blocks = [BlockBags(block, slots, configs) for block in blocks]
        self._leaf = torch.zeros((), requires_grad=True)  # makes autograd call backward; gets no gradient
        has_caches = any(block.cache is not None for block in blocks)
        self._alarm = DeviceAlarm(device, len(blocks), has_caches=has_caches)
        self._ahead = BatchesAhead(device) if has_caches else None
        self._announced: deque[tuple[KeyedJaggedTensor, LookedUpBatch]] = deque()

    def prefetch(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> None:
        """Have the rows of a batch on their way; `pooled` is called with the batches in the same order."""
        if self._ahead is None:
            return
        self._raise_for(self._alarm.known())
        self._check(features)
        self._announced.append((features, self._batch_ahead(self._ahead, features, is_weighted=is_weighted)))

    def pooled(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> Tensor:
        """Return float32 [B, C], the slots' columns; the backward pass updates the rows.

        Raises: ConfigError: a feature is missing, or a batch was prefetched and this is not it.
            DataError: an earlier batch was wrong, see `check`.
        """
        batch = self.look_up(features, is_weighted=is_weighted)
        if isinstance(batch, Tensor):
            return batch
        weights = features.weights() if is_weighted else None
        out: Tensor = _Pool.apply(self, batch, weights, self._leaf)  # type: ignore[no-untyped-call]
        return out

    def look_up(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> Tensor | LookedUpBatch:
        """Return a batch for `values` and `apply_gradients`; without grad mode its values, if it is not the next one.

        Raises: see `pooled`.
        """
        self._raise_for(self._alarm.known())
        self._check(features)
        is_next = bool(self._announced) and self._announced[0][0] is features
        if self._ahead is None:
            batch = self._batch(features, is_weighted=is_weighted)
        elif is_next or torch.is_grad_enabled():
            batch = self._next_batch(self._ahead, features, is_weighted=is_weighted)
        else:
            return self._read_through(self._ahead, features, is_weighted=is_weighted)
        self._alarm.expect(batch.report) if torch.is_grad_enabled() else self._alarm.send(batch.report)
        return batch

    def values(self, batch: LookedUpBatch) -> Tensor:
        """Return float32 [B, C]."""
        return self.joined([block.pooled(bags) for block, bags in zip(self.blocks, batch.bags, strict=True)])

    def check(self) -> None:
        """Wait for the device.

        Raises: DataError: a batch had an id out of range, or a gradient was not finite. ConfigError: a batch had no
            room in the cache.
        """
        self._raise_for(self._alarm.waited_for())

    def _batch(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> LookedUpBatch:
        report = self._alarm.new_report()
        of_blocks = zip(self.blocks, report.words_of_ids, strict=True)
        bags = [block.bags(features, words, is_weighted=is_weighted) for block, words in of_blocks]
        report.ids, report.offsets = [each.ids_L for each in bags], [each.offsets for each in bags]
        return LookedUpBatch(bags, report)

    def _batch_ahead(self, ahead: BatchesAhead, features: KeyedJaggedTensor, *, is_weighted: bool) -> LookedUpBatch:
        """Return a batch whose rows are in the caches once `Flight.take` was called."""
        with ahead.announced() as flight:
            if ahead.stream is not None:
                features.record_stream(ahead.stream)
            flight.epoch = self._epoch()
            batch = self._batch(features, is_weighted=is_weighted)
            parts = zip(self.blocks, batch.bags, batch.report.words_of_caches, strict=True)
            bags = [block.placed(of_block, flight, words) for block, of_block, words in parts]
            return LookedUpBatch(bags, batch.report, flight)

    def _next_batch(self, ahead: BatchesAhead, features: KeyedJaggedTensor, *, is_weighted: bool) -> LookedUpBatch:
        found, batch = self._announced.popleft() if self._announced else (None, None)
        if found is not None and found is not features:
            self._announced.appendleft((found, batch))  # type: ignore[arg-type]
            raise ConfigError(
                "a batch was prefetched, and another one is looked up",
                expected="the very features that were given to prefetch, in the same order",
            )
        if (
            batch is None or batch.flight is None or batch.flight.epoch != self._epoch()
        ):  # or rows were loaded meanwhile
            batch = self._batch_ahead(ahead, features, is_weighted=is_weighted)
        assert batch.flight is not None
        batch.flight.take()
        return batch

    def _read_through(self, ahead: BatchesAhead, features: KeyedJaggedTensor, *, is_weighted: bool) -> Tensor:
        ahead.join()
        batch = self._batch(features, is_weighted=is_weighted)
        self._alarm.send(batch.report)
        return self.joined([block.read_through(bags) for block, bags in zip(self.blocks, batch.bags, strict=True)])

    def _epoch(self) -> int:
        return sum(block.times_forgotten for block in self.blocks)

    def _check_flight(self, flight: Flight) -> None:
        if not flight.is_done and flight.epoch == self._epoch():
            return
        why = "twice for a batch" if flight.is_done else "for a batch after rows were loaded"
        raise ConfigError(
            f"backward was called {why}, and its rows may have left the cache",
            expected="one backward for each forward, before rows are loaded",
        )

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        """Return the blocks' columns in the order of the slots."""
        if len(values) == 1:
            return values[0]
        columns: dict[int, Tensor] = {}
        for block, of_block in zip(self.blocks, values, strict=True):
            parts = torch.split(of_block, [slot.dim for slot in block.slots], dim=1)
            columns |= {slot.column: part for slot, part in zip(block.slots, parts, strict=True)}
        return torch.cat([columns[slot.column] for slot in self._slots], dim=1)

    def apply_gradients(self, batch: LookedUpBatch, grads_BC: Tensor) -> None:
        """Update the rows, unless something is wrong with the batch."""
        if batch.flight is not None:
            self._check_flight(batch.flight)
        grads_BC = grads_BC.contiguous()
        count_not_finite(grads_BC, batch.report.words)
        if self._agree is not None:
            self._agree(batch.report)
        self._alarm.send(batch.report)
        for block, bags in zip(self.blocks, batch.bags, strict=True):
            block.update(bags, block.divided(bags, block.columns_of(grads_BC)), batch.report.words)
        if batch.flight is not None:
            batch.flight.is_done = True

    def weight_gradients(self, batch: LookedUpBatch, weights: Tensor, grads_BC: Tensor) -> Tensor:
        """Return the gradient of the ids' weights; before the rows are updated."""
        total = torch.zeros_like(weights)
        for block, bags in zip(self.blocks, batch.bags, strict=True):
            grads_L = block.weight_gradients(bags, block.divided(bags, block.columns_of(grads_BC)))
            total.index_add_(0, bags.positions_L, grads_L) if bags.positions_L is not None else total.add_(grads_L)
        return total

    def _check(self, features: KeyedJaggedTensor) -> None:
        check_features(features, self._slots, self._configs, self._device)

    def _raise_for(self, found: WrongBatch | None) -> None:
        if found is None:
            return
        if found.is_elsewhere:
            raise DataError(
                "something was wrong with a batch on another rank, which says what; the batch changed no row",
                do="see the error of that rank; the newest checkpoint is from before this batch",
            )
        if found.num_wrong_ids:
            block = self.blocks[found.block]
            slot = block.slots[found.bag * len(block.slots) // found.num_bags]
            table = self._configs[slot.table]
            first_id = found.first_id + block.first_id(slot)
            raise DataError(
                f"table {table.name}: id {first_id} of feature {slot.feature} is out of range "
                f"({found.num_wrong_ids} such ids in one batch, which changed no row)",
                expected=f"ids in [0, {table.num_embeddings})",
                do="raise num_embeddings; the newest checkpoint is from before this batch",
            )
        if found.num_short:
            block = self.blocks[found.block]
            raise ConfigError(
                f"tables {', '.join(block.table_names)}: their cache of {block.num_slots(found.of_states)} "
                f"{'optimizer states' if found.of_states else 'rows'} is {found.num_short} too small for a batch "
                "beside those in flight; the batch changed no row",
                expected="a cache of at least the distinct rows of the batches in flight",
                do="raise the load factor in cache_params, prefetch fewer batches ahead, or make batches smaller",
            )
        raise DataError(
            "elements of the gradients of pooled rows are not finite; no row changed",
            expected="finite gradients: training has diverged",
            do="lower the learning rates; the newest checkpoint is from before this step",
        )


@dataclass(frozen=True, slots=True)
class _Bags:
    """One batch as one block sees it."""

    ids_L: Tensor
    slots_L: Tensor  # rows of the block, or their slots in its cache; the first one where the id is wrong
    row_L: Tensor  # of the pooled bags, [B * F, D]
    offsets: Tensor  # [F * B + 1]
    weights_L: Tensor | None
    positions_L: Tensor | None  # in the batch; None: as they are
    lengths: Tensor  # [F * B]
    batch_size: int
    segments: Segments | None = None  # of the slots, if they are those of a cache


def check_features(
    features: KeyedJaggedTensor, slots: Sequence[Slot], configs: Sequence[EmbeddingConfig], device: torch.device
) -> None:
    """Raise ConfigError for a batch that is elsewhere, of variable size, or lacks a feature."""
    if features.values().device != device:
        raise ConfigError(f"the batch is on {features.values().device}", expected=f"{device}, as the tables")
    if features.variable_stride_per_key():
        raise ConfigError("a batch of variable size (VBE) was given", expected="as many examples for every key")
    missing = [slot for slot in slots if slot.feature not in features.index_per_key()]
    if missing:
        raise ConfigError(
            f"table {configs[missing[0].table].name}: the batch has no feature {missing[0].feature!r}",
            expected=f"a KeyedJaggedTensor with it; this one has {features.keys()}",
        )


def in_slot_order(
    features: KeyedJaggedTensor, slots: Sequence[Slot], *, is_weighted: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return ids [L], lengths [F * B], weights [L] if asked for, and the positions in the batch if they are others."""
    ids_L, lengths, batch_size = whole_ids(features), features.lengths(), features.stride()
    weights_L = features.weights().detach().float().contiguous() if is_weighted else None
    if features.keys() == [slot.feature for slot in slots]:
        return ids_L, lengths, weights_L, None
    # Waits for the device; a batch that has just these keys, in this order, does not.
    places = features.index_per_key()
    keys = torch.tensor([places[slot.feature] for slot in slots], device=ids_L.device)
    bags = (keys[:, None] * batch_size + torch.arange(batch_size, device=ids_L.device)).view(-1)
    positions = gather_segments(lengths, bags)
    weights_L = None if weights_L is None else weights_L[positions]
    return ids_L[positions], lengths[bags], weights_L, positions


class BlockBags:
    """The slots of one block."""

    def __init__(self, block: Block, slots: Sequence[Slot], configs: Sequence[EmbeddingConfig]) -> None:
        """Args: slots: of all tables; those of the block's are taken, in their order."""
        self.slots = [slot for slot in slots if slot.table in block.tables]
        self.table_names = [configs[number].name for number in block.tables]
        self.learning_rate = block.params.learning_rate
        self.device = block.weights.device
        self._block, self._dim = block, block.weights.shape[1]
        self._optimizer = block.params.row_optimizer()
        first = dict(zip(block.tables, block.first_rows, strict=True))
        self._ids = dict(zip(block.tables, block.ids, strict=True))
        self._feature_rows = FeatureRows(
            torch.tensor([first[slot.table] for slot in self.slots], device=self.device),
            torch.tensor([len(self._ids[slot.table]) for slot in self.slots], device=self.device),
            block.num_rows,
        )
        self._is_mean_F = torch.tensor([slot.is_mean for slot in self.slots], device=self.device)
        self._has_mean = any(slot.is_mean for slot in self.slots)

    def first_id(self, slot: Slot) -> int:
        """Return the id of the first row that this rank has of the slot's table: the ids of batches count from it."""
        return self._ids[slot.table].start

    def bags(self, features: KeyedJaggedTensor, report: Tensor, *, is_weighted: bool) -> _Bags:
        """Args: report: int64 [2], see `locate_rows`."""
        ids_L, lengths, weights_L, positions = in_slot_order(features, self.slots, is_weighted=is_weighted)
        batch_size = features.stride()
        offsets = features.offsets() if positions is None else offsets_of(lengths)
        slots_L, row_L = locate_rows(ids_L, offsets, self._feature_rows, report)
        return _Bags(ids_L, slots_L, row_L, offsets, weights_L, positions, lengths, batch_size)

    def pooled(self, bags: _Bags) -> Tensor:
        """Return float32 [B, F * D]."""
        rows = pool_rows(self._block.weights, bags.slots_L, bags.offsets, bags.weights_L, batch_size=bags.batch_size)
        return self.divided(bags, rows.view(bags.batch_size, len(self.slots) * self._dim))

    def divided(self, bags: _Bags, values: Tensor) -> Tensor:
        """Divide the columns of MEAN features, [B, F * D], by the lengths of their bags."""
        if not self._has_mean:
            return values
        lengths_BF = bags.lengths.view(len(self.slots), bags.batch_size).T.clamp(min=1).float()
        lengths_BF = torch.where(self._is_mean_F, lengths_BF, 1.0)
        return (values.view(*lengths_BF.shape, self._dim) / lengths_BF[:, :, None]).view(values.shape)

    def columns_of(self, values_BC: Tensor) -> Tensor:
        """Return the block's columns, [B, F * D], contiguous."""
        if values_BC.shape[1] == len(self.slots) * self._dim:
            return values_BC.contiguous()
        return torch.cat([values_BC[:, slot.column : slot.column + slot.dim] for slot in self.slots], dim=1)

    def update(self, bags: _Bags, grads: Tensor, wrong: Tensor) -> None:
        """Args: wrong: words of which each must be 0, or no row is updated."""
        segments = segments_of(bags.slots_L) if bags.segments is None else bags.segments
        gradients = RowGradients(grads.view(-1, self._dim), bags.row_L, bags.weights_L, segments, wrong)
        block = self._block
        if block.cache is not None:
            block.cache.note_update()
        block.capture.before_update(segments, wrong)
        apply_gradients(self._optimizer, block.weights, block.states, gradients, self.learning_rate)

    def placed(self, bags: _Bags, flight: Flight, num_short: Tensor) -> _Bags:
        """Have the batch's rows in the block's cache. Args: num_short: see `BlockCache.place`."""
        assert self._block.cache is not None
        rows = segments_of(bags.slots_L)
        segments, slots_L = self._block.cache.place(rows, num_short, now=flight.number, in_flight=flight.oldest)
        return replace(bags, slots_L=slots_L, segments=segments)

    def read_through(self, bags: _Bags) -> Tensor:
        """Return what `pooled` does, for rows that are not placed."""
        assert self._block.cache is not None
        rows_LD = self._block.cache.weights.read_through(WEIGHT, bags.slots_L)
        every_one = torch.arange(len(rows_LD), device=self.device)
        rows = pool_rows(rows_LD, every_one, bags.offsets, bags.weights_L, batch_size=bags.batch_size)
        return self.divided(bags, rows.view(bags.batch_size, len(self.slots) * self._dim))

    def num_slots(self, of_states: bool) -> int:
        cache = self._block.cache
        found = None if cache is None else cache.states if of_states else cache.weights
        return 0 if found is None else found.num_slots

    @property
    def times_forgotten(self) -> int:
        return 0 if self._block.cache is None else self._block.cache.times_forgotten

    def weight_gradients(self, bags: _Bags, grads: Tensor) -> Tensor:
        return (gather_rows(self._block.weights, bags.slots_L) * grads.view(-1, self._dim)[bags.row_L]).sum(1)


@dataclass(frozen=True, slots=True)
class LookedUpBatch:
    bags: list[_Bags]  # by block
    report: BatchReport
    flight: Flight | None = None  # with a cache


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: DeviceBags, batch: LookedUpBatch, weights: Tensor | None, leaf: Tensor) -> Tensor:
        ctx.of, ctx.batch, ctx.weights = of, batch, weights
        return of.values(batch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads_BC: Tensor) -> tuple[Tensor | None, ...]:
        of_weights = ctx.of.weight_gradients(ctx.batch, ctx.weights, grads_BC) if ctx.needs_input_grad[2] else None
        ctx.of.apply_gradients(ctx.batch, grads_BC)
        return None, None, of_weights, None
