"""A contiguous range of a table's rows, with its optimizer state: rows are found by subtraction, without an index."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows
from ett.trainer.sparse.hashing import Ids, RowInit
from ett.trainer.sparse.row_optimizer import RowOptimizer, RowsOfTable
from ett.trainer.sparse.row_sums import RowSums

_ROWS_AT_ONCE = 1 << 16  # initial rows that are computed at once: bounds the memory beside the table's own


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
            self._fill()

    @torch.no_grad()
    def _fill(self) -> None:
        for begin in range(0, len(self.ids), _ROWS_AT_ONCE):
            part = self.ids[begin : begin + _ROWS_AT_ONCE]
            rows = self._init.rows(np.arange(part.start, part.stop))
            self.weight[begin : begin + len(part)] = torch.from_numpy(rows)


class DenseRows(PlainRows):
    """Implements `ett.checkpoint.table.TableShard`; its rows change in the backward pass."""

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
        self.state_rows = {s.name: torch.zeros(len(ids), s.width, dtype=getattr(torch, s.dtype)) for s in self.states}

    def update(self, ids: Ids, grads: RowSums, learning_rate: float) -> None:
        """Take one optimizer step: distinct ids of this rank, int64 [N], and a sum of gradients for each."""
        rows, threads = ids - self.ids.start, torch.get_num_threads()
        table = RowsOfTable(self.weight.detach(), self.state_rows, rows, threads)
        self._optimizer.update_rows(table, grads, learning_rate)
        torch.autograd.graph.increment_version(self.weight)

    def export_rows(self) -> TableRows:
        part = slice(None) if self._is_exporter else slice(0)
        return TableRows(
            ids=torch.arange(self.ids.start, self.ids.stop)[part],
            weights=self.weight.detach()[part],
            states={name: state[part] for name, state in self.state_rows.items()},
        )

    def owned(self, ids: Tensor) -> Tensor:
        return (ids >= self.ids.start) & (ids < self.ids.stop)

    def clear(self) -> None:
        """Give every row its initial value: a checkpoint need not have rows that were never updated."""
        self._fill()
        for state in self.state_rows.values():
            state.zero_()

    def import_rows(self, rows: TableRows) -> None:
        at = rows.ids - self.ids.start
        with torch.no_grad():
            self.weight[at] = rows.weights
        for name, state in rows.states.items():
            self.state_rows[name][at] = state
