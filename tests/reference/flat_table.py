"""A table as a dict: no slots, no tiers, no index; every rule by sorting all rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.table import TableRows
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import RowOptimizer
from ett.trainer.sparse.row_rules import RowRules


@dataclass
class Row:
    weight: Tensor
    states: dict[str, Tensor]
    last: int = 0
    count: int = 0


@dataclass
class FlatTable:
    init: RowInit
    optimizer: RowOptimizer
    dim: int
    rules: RowRules
    rows: dict[int, Row] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # since the last export
    tick: int = 0

    def read(self, ids: list[int]) -> Tensor:
        rows = [self.rows[i].weight if i in self.rows else self._initial(i) for i in ids]
        return torch.stack(rows) if rows else torch.empty(0, self.dim)

    def update(self, ids: list[int], grads: Tensor, learning_rate: float) -> bool:
        """Return False, with nothing done but sightings, where the table is full."""
        at = [n for n, i in enumerate(ids) if self._is_admitted(i)]
        ids, grads = [ids[n] for n in at], grads[at]
        if not ids:
            return True
        new = [i for i in ids if i not in self.rows]
        self._evict_old(ids)
        excess = len(self.rows) + len(new) - self.rules.max_rows
        if self.rules.max_rows and excess > 0 and new:
            if self.rules.when_full == "error" or len(ids) > self.rules.max_rows:
                return False
            self._evict_for(excess, ids)
        for i in ids:
            if i not in self.rows:
                zeros = {s.name: torch.zeros(s.width, dtype=getattr(torch, s.dtype)) for s in self._specs()}
                self.rows[i] = Row(self._initial(i), zeros)
        rows = [self.rows[i] for i in ids]
        weights = torch.stack([row.weight for row in rows])
        states = {s.name: torch.stack([row.states[s.name] for row in rows]) for s in self._specs()}
        self.optimizer.update(weights, grads.clone(), states, learning_rate)
        self.tick += 1
        for n, (i, row) in enumerate(zip(ids, rows, strict=True)):
            row.weight, row.states = weights[n].clone(), {name: state[n].clone() for name, state in states.items()}
            row.last, row.count = self.tick, row.count + 1
            self.gone.discard(i)
        return True

    def assert_exported(self, exported: TableRows) -> None:
        """Fail unless a table's export is these rows, bit for bit."""
        ids = sorted(self.rows)
        assert exported.ids.tolist() == ids
        rows = [self.rows[i] for i in ids]
        assert exported.weights.tolist() == [row.weight.tolist() for row in rows]
        for spec in self._specs():
            assert exported.states[spec.name].tolist() == [row.states[spec.name].tolist() for row in rows]
        if self.rules.has_ledger:
            assert exported.states["row_last_update"].flatten().tolist() == [row.last for row in rows]
            assert exported.states["row_updates"].flatten().tolist() == [row.count for row in rows]

    def _specs(self) -> tuple:
        return self.optimizer.states(self.dim)

    def _initial(self, i: int) -> Tensor:
        return torch.from_numpy(self.init.rows(np.array([i])))[0]

    def _is_admitted(self, i: int) -> bool:
        if i in self.rows or self.rules.admit_after == 1:
            return True
        self.seen[i] = self.seen.get(i, 0) + 1
        if self.seen[i] < self.rules.admit_after:
            return False
        del self.seen[i]
        return True

    def _evict_old(self, keep: list[int]) -> None:
        ttl = self.rules.ttl_updates
        if ttl and (self.tick + 1) % max(1, ttl // 8) == 0:
            self._evict([i for i, row in self.rows.items() if i not in keep and row.last < self.tick + 1 - ttl])

    def _evict_for(self, excess: int, keep: list[int]) -> None:
        others = [(row.last, row.count, i) for i, row in self.rows.items() if i not in keep]
        if self.rules.when_full == "lfu":
            others = [(count, last, i) for last, count, i in others]
        self._evict([i for _, _, i in sorted(others)[: max(excess, self.rules.max_rows // 16)]])

    def _evict(self, ids: list[int]) -> None:
        for i in ids:
            del self.rows[i]
            self.gone.add(i)
