"""A contiguous range of a table's rows, with its optimizer state: rows are found by subtraction, without an index."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.row_ranges import gather_range, scatter_range
from ett.checkpoint.table import StateSpec, TableRows
from ett.checkpoint.table_lock import TableLock
from ett.checkpoint.tracked_table import NOBODY_TRACKS, RowChanges
from ett.trainer.sparse.hashing import Ids, RowInit
from ett.trainer.sparse.row_optimizer import RowOptimizer, RowsOfTable
from ett.trainer.sparse.row_sums import RowSums

ROWS_AT_ONCE = 1 << 16  # initial rows that are computed at once: bounds the memory beside the table's own


class PlainRows(nn.Module):
    """The rows of a range of ids; a parameter that any torch optimizer can train. Of one rank, and not sharded."""

    def __init__(self, init: RowInit, *, dim: int, ids: range, given: Tensor | None = None) -> None:
        """Start with the initial rows, or with given ones, float32 [len(ids), dim], without a copy."""
        super().__init__()
        self.dim, self.ids = dim, ids
        self._init = init
        if isinstance(given, nn.Parameter):
            self.weight = given  # the very parameter, so that an optimizer that holds it goes on
        else:
            self.weight = nn.Parameter(torch.empty(len(ids), dim) if given is None else given.detach())
        if given is None:
            self._fill(torch.arange(len(ids)))

    @torch.no_grad()
    def _fill(self, rows: Tensor) -> None:
        for part in torch.split(rows, ROWS_AT_ONCE):
            initial = self._init.rows((part + self.ids.start).numpy())
            self.weight[part] = torch.from_numpy(initial)


class DenseRows(PlainRows):
    """Implements `TableShard` and `TrackedTable` of `ett.checkpoint`; its rows change in the backward pass."""

    def __init__(
        self,
        name: str,
        init: RowInit,
        optimizer: RowOptimizer,
        *,
        dim: int,
        ids: range,
        is_exporter: bool = True,
        given: Tensor | None = None,
    ) -> None:
        """Start as `PlainRows` does.

        Args:
            name: the table's name in checkpoints, such as "embedding_bags.t".
            ids: the rows that this rank has.
            is_exporter: false where another rank has the same rows and saves them.
        """
        super().__init__(init, dim=dim, ids=ids, given=given)
        self.name = name
        self.weight_dtype = "float32"
        self.states: tuple[StateSpec, ...] = optimizer.states(dim)
        self._optimizer, self._is_exporter = optimizer, is_exporter
        self.is_copy = not is_exporter
        self.lock = TableLock()
        self.tracked_by: RowChanges = NOBODY_TRACKS
        self.register_load_state_dict_pre_hook(_tell_of_all)  # type: ignore[no-untyped-call]
        self.state_rows = {s.name: torch.zeros(len(ids), s.width, dtype=getattr(torch, s.dtype)) for s in self.states}

    def update(self, ids: Ids, grads: RowSums, learning_rate: float) -> None:
        """Take one optimizer step: distinct ids of this rank, int64 [N], and a sum of gradients for each."""
        rows, threads = ids - self.ids.start, torch.get_num_threads()
        table = RowsOfTable(self.weight.detach(), self.state_rows, rows, threads)
        if self._is_exporter:
            with self.lock:
                self.tracked_by.updated(rows, ids)
        self._optimizer.update_rows(table, grads, learning_rate)
        torch.autograd.graph.increment_version(self.weight)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: nobody is told of its changes until somebody tracks it."""
        return {**self.__dict__, "tracked_by": NOBODY_TRACKS, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "lock": TableLock()})  # type: ignore[no-untyped-call]

    def track(self, changes: RowChanges) -> None:
        changes.grow(self.num_tracked_rows())
        self.tracked_by = changes

    def touched(self, ids: Ids | None) -> None:
        if self._is_exporter:
            mine = self.tracked_ids()
            if ids is not None:
                mine = np.unique(ids[(ids >= self.ids.start) & (ids < self.ids.stop)])
            with self.lock:
                self.tracked_by.touched(self.slots_of(mine), mine)

    def num_tracked_rows(self) -> int:
        return len(self.ids) if self._is_exporter else 0

    def tracked_ids(self) -> Ids:
        return np.arange(self.ids.start, self.ids.start + self.num_tracked_rows())

    def slots_of(self, ids: Ids) -> Ids:
        return ids - self.ids.start

    def ids_of_slots(self, slots: Ids) -> Ids:
        return slots + self.ids.start

    def begin_export(self) -> Tensor:
        return torch.arange(self.ids.start, self.ids.stop if self._is_exporter else self.ids.start)

    def gather(self, ids: Tensor, out: TableRows) -> None:
        gather_range(ids - self.ids.start, self.weight.detach(), self.state_rows, out)

    def owned(self, ids: Tensor) -> Tensor:
        return (ids >= self.ids.start) & (ids < self.ids.stop)

    def begin_import(self, num_rows: int) -> None:
        self._imported = torch.zeros(len(self.ids), dtype=torch.bool)

    def import_rows(self, rows: TableRows) -> None:
        at = rows.ids - self.ids.start
        scatter_range(at, rows, self.weight.detach(), self.state_rows)
        self._imported[at] = True

    def end_import(self) -> None:
        """Give rows that did not come their initial value: a checkpoint need not have what was never updated."""
        missing = (~self._imported).nonzero()[:, 0]
        self._fill(missing)
        for state in self.state_rows.values():
            state[missing] = 0
        del self._imported


def _tell_of_all(rows: DenseRows, *_: object) -> None:
    """A hook of the module that it is called with, before it loads a state: copies of a module share its hooks."""
    if rows.num_tracked_rows():
        ids = rows.tracked_ids()
        with rows.lock:
            rows.tracked_by.updated(rows.slots_of(ids), ids)
