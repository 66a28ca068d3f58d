"""Pooled lookup of tables in device memory, and their update in the backward pass, without a wait for the device.

What is wrong with a batch is found on the device: an id out of range, a gradient that is not finite. Such a batch
changes no row, and the error rises at the next call, or at `check`, which waits.

Shapes: B examples, F features of a block, L ids, D elements of a row; bag f * B + b is example b in feature f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ett.errors import ConfigError, DataError
from ett.trainer.embedding.device_tables import Block
from ett.trainer.embedding.feature_ids import Slot
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.jagged import KeyedJaggedTensor
from ett.trainer.jagged.segments import gather_segments, offsets_of
from ett.trainer.kernels.rows import apply_gradients, gather_rows, pool_rows
from ett.trainer.kernels.segments import RowGradients, segments_of


class DeviceBags:
    """All slots of a collection whose tables are on one device."""

    def __init__(self, blocks: Sequence[Block], slots: Sequence[Slot], configs: Sequence[EmbeddingConfig]) -> None:
        self._slots, self._configs = slots, configs
        self.blocks = [BlockBags(block, slots, configs) for block in blocks]
        self._alarm = _Alarm(blocks[0].weights.device)

    def pooled(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> Tensor:
        """Return float32 [B, C], the slots' columns; the backward pass updates the rows.

        Raises: ConfigError: a feature is missing. DataError: an earlier batch was wrong, see `check`.
        """
        self._raise_for(self._alarm.known())
        self._check(features)
        weights = features.weights() if is_weighted else None
        bags = [block.bags(features, is_weighted=is_weighted) for block in self.blocks]
        batch = _Batch(bags, self._alarm.ids(bags))
        leaf = torch.zeros((), requires_grad=True)  # makes autograd call backward
        out: Tensor = _Pool.apply(self, batch, weights, leaf)  # type: ignore[no-untyped-call]
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
        is_right = batch.is_right & self._alarm.gradients(grads_BC)
        for block, bags in zip(self.blocks, batch.bags, strict=True):
            block.update(bags, block.divided(bags, block.columns_of(grads_BC)), is_right)

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

    def _raise_for(self, found: _Found | None) -> None:
        if found is None:
            return
        if found.num_wrong_ids:
            slot = self.blocks[found.block].slots[found.feature]
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
    feature_L: Tensor
    is_right_L: Tensor
    offsets: Tensor  # [F * B + 1]
    row_L: Tensor  # of the pooled bags, [B * F, D]
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
        self._first_row_F = torch.tensor([first[slot.table] for slot in self.slots], device=self.device)
        self._num_rows_F = torch.tensor([configs[s.table].num_embeddings for s in self.slots], device=self.device)
        self._is_mean_F = torch.tensor([slot.is_mean for slot in self.slots], device=self.device)
        self._has_mean = any(slot.is_mean for slot in self.slots)

    def bags(self, features: KeyedJaggedTensor, *, is_weighted: bool) -> _Bags:
        ids_L, lengths, batch_size = features.values().long(), features.lengths(), features.stride()
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
        # Of position p: the number of bags that end at or before it.
        bag_L = torch.searchsorted(offsets[1:], torch.arange(len(ids_L), device=self.device), right=True)
        feature_L = bag_L // max(batch_size, 1)
        is_right_L = (ids_L >= 0) & (ids_L < self._num_rows_F[feature_L])
        return _Bags(
            ids_L=ids_L,
            slots_L=torch.where(is_right_L, ids_L + self._first_row_F[feature_L], 0),
            feature_L=feature_L,
            is_right_L=is_right_L,
            offsets=offsets,
            row_L=bag_L % max(batch_size, 1) * len(self.slots) + feature_L,
            weights_L=weights_L,
            positions_L=positions,
            lengths=lengths,
            batch_size=batch_size,
        )

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

    def update(self, bags: _Bags, grads: Tensor, is_right: Tensor) -> None:
        segments = segments_of(bags.slots_L, len(self._block.weights))
        # A wrong batch has no rows to update.
        segments = replace(segments, count=torch.where(is_right, segments.count, 0))
        gradients = RowGradients(grads.view(-1, self._dim), bags.row_L, bags.weights_L, segments)
        block = self._block
        apply_gradients(self._optimizer, block.weights, block.states, gradients, self.learning_rate)

    def weight_gradients(self, bags: _Bags, grads: Tensor) -> Tensor:
        return (gather_rows(self._block.weights, bags.slots_L) * grads.view(-1, self._dim)[bags.row_L]).sum(1)


@dataclass(frozen=True, slots=True)
class _Batch:
    bags: list[_Bags]  # by block
    is_right: Tensor  # bool []: no id is out of range


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


@dataclass(frozen=True, slots=True)
class _Found:
    num_wrong_ids: int
    first_id: int
    block: int
    feature: int  # of the block
    has_wrong_gradients: bool


class _Alarm:
    """What was wrong first, in five words on the device and a copy of them in host memory, which comes by itself."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._words = torch.zeros(5, dtype=torch.int64, device=device)
        self._copy = torch.zeros(5, dtype=torch.int64, pin_memory=self._is_cuda)
        self._copied = torch.cuda.Event() if self._is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def ids(self, batch: Sequence[_Bags]) -> Tensor:
        """Note the first wrong id; return whether there is none, bool []."""
        is_right = torch.ones((), dtype=torch.bool, device=self._words.device)
        for number, bags in enumerate(batch):
            if not len(bags.ids_L):
                continue
            at = bags.is_right_L.to(torch.int8).argmin()
            count = (~bags.is_right_L).sum()
            zero = torch.zeros_like(count)
            self._note(torch.stack([count, bags.ids_L[at], zero + number, bags.feature_L[at], zero]), count)
            is_right &= count == 0
        return is_right

    def gradients(self, grads: Tensor) -> Tensor:
        """Note whether an element is not finite; return whether none is, bool []."""
        if not grads.numel():
            return torch.ones((), dtype=torch.bool, device=grads.device)
        # One pass, and no overflow as in a sum; what is not a number comes through.
        is_right = torch.isfinite(torch.stack(torch.aminmax(grads))).all()
        count = (~is_right).to(torch.int64)
        zero = torch.zeros_like(count)
        self._note(torch.stack([zero, zero, zero, zero, count]), count)
        return is_right

    def known(self) -> _Found | None:
        """Return what the host knows by now; it is forgotten then."""
        is_here = self._copied is None or self._copied.query()  # type: ignore[no-untyped-call]
        return self._read() if is_here else None

    def waited_for(self) -> _Found | None:
        if self._copied is not None:
            self._copied.synchronize()
        return self._read()

    def _note(self, words: Tensor, count: Tensor) -> None:
        is_first = (self._words[0] == 0) & (self._words[4] == 0) & (count > 0)
        torch.where(is_first, words, self._words, out=self._words)
        self._copy.copy_(self._words, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def _read(self) -> _Found | None:
        num_ids, first_id, block, feature, num_gradients = self._copy.tolist()
        if not num_ids and not num_gradients:
            return None
        self._words.zero_()
        self._copy.zero_()
        return _Found(num_ids, first_id, block, feature, bool(num_gradients))
