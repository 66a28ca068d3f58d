"""Pooled lookup of tables in device memory, and their update in the backward pass, without a wait for the device.

What is wrong with a batch is found on the device: an id out of range, a gradient that is not finite. Such a batch
changes no row, and the error rises at the next call, or at `check`, which waits.

Shapes: B examples, F features of a block, L ids, D elements of a row; bag f * B + b is example b in feature f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ett.errors import ConfigError, DataError
from ett.trainer.embedding.device_alarm import BatchReport, DeviceAlarm, WrongBatch
from ett.trainer.embedding.device_tables import Block
from ett.trainer.embedding.feature_ids import Slot
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.jagged import KeyedJaggedTensor
from ett.trainer.jagged.segments import gather_segments, offsets_of
from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.rows import apply_gradients, count_not_finite, gather_rows, locate_rows, pool_rows
from ett.trainer.kernels.segments import RowGradients, segments_of


class DeviceBags:
    """All slots of a collection whose tables are on one device."""

    def __init__(self, blocks: Sequence[Block], slots: Sequence[Slot], configs: Sequence[EmbeddingConfig]) -> None:
        self._slots, self._configs = slots, configs
        self.blocks = [BlockBags(block, slots, configs) for block in blocks]
        self._leaf = torch.zeros((), requires_grad=True)  # makes autograd call backward; gets no gradient
        self._alarm = DeviceAlarm(blocks[0].weights.device, len(blocks))

    def pooled(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> Tensor:
        """Return float32 [B, C], the slots' columns; the backward pass updates the rows.

        Raises: ConfigError: a feature is missing. DataError: an earlier batch was wrong, see `check`.
        """
        self._raise_for(self._alarm.known())
        self._check(features)
        weights = features.weights() if is_weighted else None
        report = self._alarm.new_report()
        of_blocks = zip(self.blocks, report.words_of_ids, strict=True)
        bags = [block.bags(features, words, is_weighted=is_weighted) for block, words in of_blocks]
        report.ids, report.offsets = [each.ids_L for each in bags], [each.offsets for each in bags]
        if not torch.is_grad_enabled():
            self._alarm.send(report)
        batch = _Batch(bags, report)
        out: Tensor = _Pool.apply(self, batch, weights, self._leaf)  # type: ignore[no-untyped-call]
        return out

    def check(self) -> None:
        """Wait for the device. Raises: DataError: a batch had an id out of range, or a gradient was not finite."""
        self._raise_for(self._alarm.waited_for())

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        """Return the blocks' columns in the order of the slots."""
        if len(values) == 1:
            return values[0]
        columns: dict[int, Tensor] = {}
        for block, of_block in zip(self.blocks, values, strict=True):
            parts = torch.split(of_block, [slot.dim for slot in block.slots], dim=1)
            columns |= {slot.column: part for slot, part in zip(block.slots, parts, strict=True)}
        return torch.cat([columns[slot.column] for slot in self._slots], dim=1)

    def apply_gradients(self, batch: _Batch, grads_BC: Tensor) -> None:
        """Update the rows, unless something is wrong with the batch."""
        grads_BC = grads_BC.contiguous()
        count_not_finite(grads_BC, batch.report.words)
        self._alarm.send(batch.report)
        for block, bags in zip(self.blocks, batch.bags, strict=True):
            block.update(bags, block.divided(bags, block.columns_of(grads_BC)), batch.report.words)

    def weight_gradients(self, batch: _Batch, weights: Tensor, grads_BC: Tensor) -> Tensor:
        """Return the gradient of the ids' weights; before the rows are updated."""
        total = torch.zeros_like(weights)
        for block, bags in zip(self.blocks, batch.bags, strict=True):
            grads_L = block.weight_gradients(bags, block.divided(bags, block.columns_of(grads_BC)))
            total.index_add_(0, bags.positions_L, grads_L) if bags.positions_L is not None else total.add_(grads_L)
        return total

    def _check(self, features: KeyedJaggedTensor) -> None:
        device = self.blocks[0].device
        if features.values().device != device:
            raise ConfigError(f"the batch is on {features.values().device}", expected=f"{device}, as the tables")
        if features.variable_stride_per_key():
            raise ConfigError("a batch of variable size (VBE) was given", expected="as many examples for every key")
        missing = [slot for slot in self._slots if slot.feature not in features.index_per_key()]
        if missing:
            raise ConfigError(
                f"table {self._configs[missing[0].table].name}: the batch has no feature {missing[0].feature!r}",
                expected=f"a KeyedJaggedTensor with it; this one has {features.keys()}",
            )

    def _raise_for(self, found: WrongBatch | None) -> None:
        if found is None:
            return
        if found.num_wrong_ids:
            slots = self.blocks[found.block].slots
            slot = slots[found.bag * len(slots) // found.num_bags]
            table = self._configs[slot.table]
            raise DataError(
                f"table {table.name}: id {found.first_id} of feature {slot.feature} is out of range "
                f"({found.num_wrong_ids} such ids in one batch, which changed no row)",
                expected=f"ids in [0, {table.num_embeddings})",
                do="raise num_embeddings; the newest checkpoint is from before this batch",
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
    slots_L: Tensor  # rows of the block; the first one where the id is wrong
    row_L: Tensor  # of the pooled bags, [B * F, D]
    offsets: Tensor  # [F * B + 1]
    weights_L: Tensor | None
    positions_L: Tensor | None  # in the batch; None: as they are
    lengths: Tensor  # [F * B]
    batch_size: int


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
        self._feature_rows = FeatureRows(
            torch.tensor([first[slot.table] for slot in self.slots], device=self.device),
            torch.tensor([configs[slot.table].num_embeddings for slot in self.slots], device=self.device),
            len(block.weights),
        )
        self._is_mean_F = torch.tensor([slot.is_mean for slot in self.slots], device=self.device)
        self._has_mean = any(slot.is_mean for slot in self.slots)

    def bags(self, features: KeyedJaggedTensor, report: Tensor, *, is_weighted: bool) -> _Bags:
        """Args: report: int64 [2], see `locate_rows`."""
        ids_L, lengths, batch_size = features.values().long(), features.lengths(), features.stride()
        offsets = None
        weights_L = features.weights().detach().float().contiguous() if is_weighted else None
        positions = None
        if features.keys() != [slot.feature for slot in self.slots]:
            # Waits for the device; a batch that has just these keys, in this order, does not.
            places = features.index_per_key()
            keys = torch.tensor([places[slot.feature] for slot in self.slots], device=self.device)
            bags = (keys[:, None] * batch_size + torch.arange(batch_size, device=self.device)).view(-1)
            positions = gather_segments(lengths, bags)
            ids_L, lengths = ids_L[positions], lengths[bags]
            weights_L = None if weights_L is None else weights_L[positions]
            offsets = offsets_of(lengths)
        offsets = features.offsets() if offsets is None else offsets
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
        segments = segments_of(bags.slots_L)
        gradients = RowGradients(grads.view(-1, self._dim), bags.row_L, bags.weights_L, segments, wrong)
        block = self._block
        apply_gradients(self._optimizer, block.weights, block.states, gradients, self.learning_rate)

    def weight_gradients(self, bags: _Bags, grads: Tensor) -> Tensor:
        return (gather_rows(self._block.weights, bags.slots_L) * grads.view(-1, self._dim)[bags.row_L]).sum(1)


@dataclass(frozen=True, slots=True)
class _Batch:
    bags: list[_Bags]  # by block
    report: BatchReport


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: DeviceBags, batch: _Batch, weights: Tensor | None, leaf: Tensor) -> Tensor:
        ctx.of, ctx.batch, ctx.weights = of, batch, weights
        return of.joined([block.pooled(bags) for block, bags in zip(of.blocks, batch.bags, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads_BC: Tensor) -> tuple[Tensor | None, ...]:
        of_weights = ctx.of.weight_gradients(ctx.batch, ctx.weights, grads_BC) if ctx.needs_input_grad[2] else None
        ctx.of.apply_gradients(ctx.batch, grads_BC)
        return None, None, of_weights, None
