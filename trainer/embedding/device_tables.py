"""Tables whose rows and optimizer state lie in device memory: one block of rows for all that are alike.

Tables of one width and one optimizer share a block, so that a batch is one kernel for all of them; each table's
parameter is a view of its part. With a cache, the block's rows are in the host's memory and some of them on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ett.checkpoint.capture.boundary_rows import BoundaryRows, DeviceStaging
from ett.checkpoint.row_ranges import gather_range, scatter_range
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.table import StateSpec, TableRows
from ett.checkpoint.table_lock import TableLock
from ett.checkpoint.tracked_table import NOBODY_TRACKS, Ids, RowChanges, Slots
from ett.errors import ConfigError
from ett.trainer.embedding.block_capture import BlockCapture
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.embedding.dense_rows import ROWS_AT_ONCE
from ett.trainer.embedding.device_boundary import Column, DeviceBoundary, NoRows
from ett.trainer.embedding.device_cache import WEIGHT, BlockCache, RowsCache
from ett.trainer.embedding.fused_optimizer import FusedParams
from ett.trainer.embedding.mapped_rows import mapped_rows
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.kernels.rows import fill_initial_rows
from ett.trainer.sparse.hashing import RowInit

_PADDED = 64  # rows that a table's part of a block begins at a multiple of: a word of bits is one table's


@dataclass(frozen=True, slots=True)
class BlockPart:
    """A table's part of a block."""

    rows: range  # of the block
    capture: BlockCapture
    columns: list[Column]


class DeviceTable(nn.Module):
    """One table; implements `TableShard` and `SelfKeepingTable` of `ett.checkpoint`. It exports to host memory."""

    def __init__(
        self,
        name: str,
        init: RowInit,
        weight: Tensor,
        states: Mapping[str, Tensor],
        cache: BlockCache | None = None,
        *,
        first_id: int = 0,
        part: BlockPart | None = None,
    ) -> None:
        """Fill `weight`, float32 [N, dim], and `states`, name -> [N, width], both views of a block.

        Args:
            cache: above the block; the parameter is up to date after a flush, with which `state_dict` begins.
            first_id: of the rows, where other ranks have those before.
            part: where they are in the block; None: there are none.
        """
        super().__init__()
        self.name, self.dim, self.weight_dtype = name, weight.shape[1], "float32"
        self.states = tuple(StateSpec(name=n, dtype=str(s.dtype)[6:], width=s.shape[1]) for n, s in states.items())
        self.weight = nn.Parameter(weight)
        self.state_rows = dict(states)
        self._init, self._cache = init, cache
        self._first_id, self._part = first_id, part
        self.lock, self.tracked_by = TableLock(), NOBODY_TRACKS
        fill_initial_rows(init, weight.detach(), first_id, by=None if cache is None else cache.device)
        for state in states.values():
            state.zero_()
        if cache is not None:
            self.register_state_dict_pre_hook(lambda *_: cache.flush())  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(lambda *_: cache.flush())  # type: ignore[no-untyped-call]
            self.register_load_state_dict_post_hook(lambda *_: cache.forget())  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(lambda *_: self.touched(None))  # type: ignore[no-untyped-call]

    def begin_export(self) -> Tensor:
        self._meet()
        if self._cache is not None:
            self._cache.flush()
        return torch.arange(len(self.weight)) + self._first_id

    def gather(self, ids: Tensor, out: TableRows) -> None:
        gather_range(ids - self._first_id, self.weight.detach(), self.state_rows, out)

    def owned(self, ids: Tensor) -> Tensor:
        return (ids >= self._first_id) & (ids < self._first_id + len(self.weight))

    def begin_import(self, num_rows: int) -> None:
        self._meet()
        if self._cache is not None:
            self._cache.flush()
            self._cache.forget()
        self._imported = torch.zeros(len(self.weight), dtype=torch.bool)

    def import_rows(self, rows: TableRows) -> None:
        at = rows.ids - self._first_id
        scatter_range(at, rows, self.weight.detach(), self.state_rows)
        self._imported[at] = True

    def end_import(self) -> None:
        """Give rows that did not come their initial value: a checkpoint need not have what was never updated."""
        weights = self.weight.detach()
        for first in range(0, len(weights), ROWS_AT_ONCE):
            missing = (~self._imported[first : first + ROWS_AT_ONCE]).nonzero()[:, 0].to(weights.device)
            if not len(missing):
                continue
            initial = torch.empty_like(weights[first : first + ROWS_AT_ONCE])
            fill_initial_rows(self._init, initial, self._first_id + first)
            weights[first + missing] = initial[missing]
            for state in self.state_rows.values():
                state[(first + missing).to(state.device)] = 0
        del self._imported
        self._meet()

    # SelfKeepingTable

    def track(self, changes: RowChanges) -> None:
        with self.lock:
            self.tracked_by = changes
            changes.grow(len(self.weight))
            if self._part is not None:
                self._part.capture.track(self._part.rows, is_tracked=changes is not NOBODY_TRACKS)

    def touched(self, ids: Ids | None) -> None:
        with self.lock:
            mine = self.tracked_ids() if ids is None else ids[self._is_mine(ids)]
            self.tracked_by.touched(mine - self._first_id, mine)

    def num_tracked_rows(self) -> int:
        return len(self.weight)

    def tracked_ids(self) -> Ids:
        return np.arange(self._first_id, self._first_id + len(self.weight))

    def slots_of(self, ids: Ids) -> Slots:
        return np.where(self._is_mine(ids), ids - self._first_id, -1)

    def ids_of_slots(self, slots: Slots) -> Ids:
        return slots + self._first_id

    def at_boundary(self, staging: DeviceStaging | None, patience: Patience) -> BoundaryRows:
        if staging is None:  # training waits, and `gather` reads the rows
            self._meet()
            if self._cache is not None:
                self._cache.flush()
        if self._part is None:
            return NoRows()
        part = self._part
        return DeviceBoundary(part.capture, part.rows, part.columns, staging, patience)

    def _is_mine(self, ids: Ids) -> NDArray[np.bool_]:
        return (ids >= self._first_id) & (ids < self._first_id + len(self.weight))

    def _meet(self) -> None:
        """Wait for the device: rows are copied by threads whose streams are not the one that trains."""
        device = self.weight.device if self._cache is None else self._cache.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Leave rows below a cache where they are: `model.to(device)` would take all of them to the device."""
        return self if self._cache is not None else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of all tables of one width and optimizer."""

    tables: list[int]  # their numbers
    first_rows: list[int]  # of each of them
    ids: list[range]  # of each of them: the rows that are here
    num_rows: int
    params: FusedParams
    weights: Tensor  # float32 [R, dim] on the device, or [slots, dim]
    states: dict[str, Tensor]  # name -> [R, width], or [slots of states, width]
    capture: BlockCapture
    cache: BlockCache | None = None

    @property
    def all_weights(self) -> Tensor:
        """Every row, [R, dim]: up to date if there is no cache, or after a flush."""
        return self.weights if self.cache is None else self.cache.weights.below[WEIGHT]

    def part(self, number: int) -> BlockPart:
        """Return where a table's rows are. Args: number: its place in the block."""
        first, weights, states = self.first_rows[number], None, None
        if self.cache is not None:
            weights, states = self.cache.weights, self.cache.states
        columns = [Column(self.all_weights, weights, WEIGHT)]
        columns += [Column(rows, states, name) for name, rows in self.all_states.items()]
        return BlockPart(range(first, first + len(self.ids[number])), self.capture, columns)

    @property
    def all_states(self) -> dict[str, Tensor]:
        return self.states if self.cache is None or self.cache.states is None else self.cache.states.below


def make_blocks(
    configs: Sequence[EmbeddingConfig],
    params: Mapping[str, FusedParams],
    device: torch.device,
    cache_params: CacheParams | None = None,
    ids: Sequence[range] | None = None,
) -> list[Block]:
    """Allocate the rows of all tables.

    Args: ids: those of each table that this rank has; a table without any is in no block. None: all.
    Raises: ConfigError: a table grows, or memory does not suffice.
    """
    alike: dict[tuple[int, FusedParams], list[int]] = {}
    ids = [range(config.num_embeddings) for config in configs] if ids is None else ids
    for number, config in enumerate(configs):
        if config.is_dynamic:
            raise ConfigError(
                f"table {config.name} grows, and its device is {device}",
                expected="tables of a fixed size in device memory",
                do="set num_embeddings, or leave the table in host memory",
            )
        if ids[number]:
            alike.setdefault((config.embedding_dim, params[config.name]), []).append(number)
    return [_block(numbers, configs, ids, settings, (device, cache_params)) for (_, settings), numbers in alike.items()]


def _block(
    numbers: list[int],
    configs: Sequence[EmbeddingConfig],
    ids: Sequence[range],
    settings: FusedParams,
    how: tuple[torch.device, CacheParams | None],
) -> Block:
    device, cache_params = how
    of_tables = [configs[number] for number in numbers]
    here = [ids[number] for number in numbers]
    first_rows = [0, *accumulate(-(-len(of_table) // _PADDED) * _PADDED for of_table in here[:-1])]
    num_rows, dim, names = (
        first_rows[-1] + len(here[-1]),
        of_tables[0].embedding_dim,
        ", ".join(t.name for t in of_tables),
    )
    num_used = sum(map(len, here))
    widths = {spec.name: (spec.width, getattr(torch, spec.dtype)) for spec in settings.row_optimizer().states(dim)}

    def on_device(width: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(num_rows, width, dtype=dtype, device=device)

    def cached(factor: float, tables: dict[str, tuple[int, torch.dtype]]) -> RowsCache:
        below = {n: mapped_rows(f"tables {names}", (num_rows, w), dtype, device) for n, (w, dtype) in tables.items()}
        return RowsCache(below, min(num_used, ceil(num_used * factor)), device)

    if cache_params is None:
        states, weights = {name: on_device(*width) for name, width in widths.items()}, on_device(dim, torch.float32)
        capture = BlockCapture(num_rows, [weights, *states.values()], None)
        return Block(numbers, first_rows, here, num_rows, settings, weights, states, capture)
    of_weights = cached(cache_params.load_factor, {WEIGHT: (dim, torch.float32)})
    of_states = None
    factor = cache_params.state_factor(sum(width for width, _ in widths.values()))
    if widths and factor < 1.0:
        of_states = cached(factor, widths)
    states = {name: on_device(*width) for name, width in widths.items()} if of_states is None else of_states.rows
    cache, weights = BlockCache(of_weights, of_states), of_weights.rows[WEIGHT]
    capture = BlockCapture(num_rows, [weights, *states.values()], of_weights.row_of_slot)
    return Block(numbers, first_rows, here, num_rows, settings, weights, states, capture, cache)


def device_table(prefix: str, config: EmbeddingConfig, block: Block, number: int, *, seed: int) -> DeviceTable:
    """Return a table, with its initial rows. Args: number: its place in the block."""
    name, first_row, ids = f"{prefix}.{config.name}", block.first_rows[number], block.ids[number]
    part = slice(first_row, first_row + len(ids))
    states = {name: state[part] for name, state in block.all_states.items()}
    init = _initial_rows(name, config, seed)
    weight = block.all_weights[part]
    return DeviceTable(name, init, weight, states, block.cache, first_id=ids.start, part=block.part(number))


def table_of_no_rows(
    prefix: str, config: EmbeddingConfig, settings: FusedParams, device: torch.device, *, seed: int
) -> DeviceTable:
    """Return the part of a table that a rank has whose rows are all on others."""
    name, dim = f"{prefix}.{config.name}", config.embedding_dim
    specs = settings.row_optimizer().states(dim)
    states = {s.name: torch.empty(0, s.width, dtype=getattr(torch, s.dtype), device=device) for s in specs}
    return DeviceTable(name, _initial_rows(name, config, seed), torch.empty(0, dim, device=device), states)


def _initial_rows(name: str, config: EmbeddingConfig, seed: int) -> RowInit:
    low, high = config.get_weight_init_min(), config.get_weight_init_max()
    return RowInit(name, seed=seed, dim=config.embedding_dim, scale=(high - low) / 2, middle=(high + low) / 2)
