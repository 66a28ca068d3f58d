"""The weight of an nn.Embedding or nn.EmbeddingBag with its optimizer state by rows, as a table that says what changes.

Ids, slots and row numbers are the same. States come with a first step, and what an optimizer or a program may put in
the place of a weight or a state is found by looking: at each step, and before each save.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ett.checkpoint.dtypes import ITEM_BYTES
from ett.checkpoint.row_ranges import gather_range, scatter_range
from ett.checkpoint.step_hooks import follow_steps
from ett.checkpoint.table import StateSpec, TableRows
from ett.checkpoint.table_lock import TableLock
from ett.checkpoint.table_segments import TableSpec
from ett.checkpoint.tensor_bytes import TORCH_DTYPES
from ett.checkpoint.tracked_table import NOBODY_TRACKS, Ids, RowChanges
from ett.errors import CorruptState

log = logging.getLogger(__name__)
Embeddings = nn.Embedding | nn.EmbeddingBag
ROWS_AT_ONCE = 1 << 20  # told of at once where all are: bounds the memory that this takes


class TorchTable:
    """Implements `TableShard` and `TrackedTable`; the same on every rank, of which one saves it."""

    def __init__(self, name: str, module: Embeddings, optimizer: Optimizer | None, *, is_copy: bool) -> None:
        """Args: name: the module's in the model. optimizer: whose state by rows goes with the weight."""
        self.name, self.is_copy = name, is_copy
        self.module, self.optimizer = module, optimizer
        self.lock = TableLock()
        self.tracked_by: RowChanges = NOBODY_TRACKS
        self._imported: dict[str, Tensor] = {}
        self._comes_whole = True
        self._seen: dict[str, tuple[Tensor, int, int]] = {}
        self._is_stepping = False  # an optimizer changes rows, which it has told
        self._said: set[str] = set()
        self._describe()

    @property
    def weight(self) -> nn.Parameter:
        """Return the parameter that the module has now, [N, dim]."""
        return cast(nn.Parameter, self.module.weight)

    def state_rows(self) -> dict[str, Tensor]:
        """Return the live optimizer states that have a row for each of the weight's, by name: [N, ...]."""
        entry = {} if self.optimizer is None else self.optimizer.state.get(self.weight, {})
        return {name: entry[name] for name in sorted(entry, key=str) if self._has_rows(name, entry[name])}

    def settle(self) -> None:
        """Look, between two steps, at what there is to save: of a table that has other states now, all of it."""
        self.look()
        before = self._described
        self._describe()
        if self._described != before:
            self.tracked_by = NOBODY_TRACKS

    def expect(self, saved: TableSpec, *, is_whole: bool = True) -> None:
        """Prepare for an import of the states that were saved; the live ones do not count.

        Args: is_whole: whether every row comes; else those that do not stay as they are.
        """
        self._comes_whole = is_whole
        self.states = tuple(StateSpec(name=g.name[6:], dtype=g.dtype, width=g.width) for g in saved.groups[1:])

    def take_imported(self) -> dict[str, Tensor]:
        """Return the states that were imported, [N, width] each, in host memory."""
        imported, self._imported = self._imported, {}
        return imported

    # What a step tells.

    def look(self) -> None:
        """Tell of all rows if weight or state is another or has been written to since the last step."""
        with self.lock:
            self._is_stepping = False
        now = self._present()
        if self._is_as_seen(now):
            return
        self._seen = now
        if self.tracked_by is not NOBODY_TRACKS:
            self._say(
                logging.WARNING,
                "table %s was written to by something else than a step of an optimizer, so that all of it is saved "
                "again, now and whenever this happens; Checkpointer.touched says which rows",
            )
            self.tracked_by.grow(self.num_tracked_rows())
            self.touched(None)

    def before_step(self, optimizer: Optimizer, rows: Tensor | None) -> None:
        if self.is_copy or self.tracked_by is NOBODY_TRACKS:
            return
        if rows is None:
            self._say(
                logging.INFO,
                f"table %s: {type(optimizer).__name__}, as it is set, may change every row at each step, so each save "
                "writes all of it",
            )
        with self.lock:
            self._is_stepping = True
            for ids in self._all_ids() if rows is None else (np.unique(rows.cpu().numpy()),):
                self.tracked_by.updated(ids, ids)

    def after_step(self) -> None:
        with self.lock:
            self._seen, self._is_stepping = self._present(), False

    # TrackedTable

    def track(self, changes: RowChanges) -> None:
        if not self.is_copy:
            follow_steps(self)
        self._seen = self._present()
        changes.grow(self.num_tracked_rows())
        self.tracked_by = changes

    def touched(self, ids: Ids | None) -> None:
        mine = self._all_ids() if ids is None else (np.unique(ids[(ids >= 0) & (ids < self.num_tracked_rows())]),)
        with self.lock:
            for some in mine:
                self.tracked_by.touched(some, some)

    def num_tracked_rows(self) -> int:
        return 0 if self.is_copy else len(self.weight)

    def tracked_ids(self) -> Ids:
        return np.arange(self.num_tracked_rows())

    def slots_of(self, ids: Ids) -> Ids:
        return np.where((ids >= 0) & (ids < self.num_tracked_rows()), ids, -1)

    def ids_of_slots(self, slots: Ids) -> Ids:
        return slots

    # TableShard

    def begin_export(self) -> Tensor:
        return torch.arange(self.num_tracked_rows())

    def gather(self, ids: Tensor, out: TableRows) -> None:
        """See `TableShard`. Raises: CorruptState: somebody writes to the table who does not say it."""
        if self.tracked_by is not NOBODY_TRACKS and not self._is_stepping and not self._is_as_seen(self._present()):
            raise CorruptState(
                f"table {self.name} was written to while a checkpoint of it was on its way, by something else than a "
                "step of an optimizer",
                expected="changes between two saves, or a save that training waits for",
                do="set checkpoint.background = false for a model whose rows are changed by other code",
            )
        live = self.state_rows() if out.states else {}
        gather_range(ids, self.weight.detach(), {name: _as_rows(live[name]) for name in out.states}, out)

    def owned(self, ids: Tensor) -> Tensor:
        return (ids >= 0) & (ids < len(self.weight))

    def begin_import(self, num_rows: int) -> None:
        self._imported = {state.name: self._room(state) for state in self.states}

    def _room(self, state: StateSpec) -> Tensor:
        """Return memory for a state; a row of it that does not come has what the optimizer gave it, or zeros."""
        shape, dtype = (len(self.weight), state.width), TORCH_DTYPES[state.dtype]
        if self._comes_whole:
            return torch.empty(shape, dtype=dtype)
        room, live = torch.zeros(shape, dtype=dtype), self.state_rows().get(state.name)
        return room if live is None or live.dtype != dtype else room.copy_(_as_rows(live))

    def import_rows(self, rows: TableRows) -> None:
        scatter_range(rows.ids, rows, self.weight.detach(), self._imported)

    def end_import(self) -> None:
        """States wait for `take_imported`: an optimizer is given all of its state at once."""
        torch.autograd.graph.increment_version(self.weight)

    def _describe(self) -> None:
        weight, *states = layout = self._layout()
        self._described = len(self.weight), layout
        self.weight_dtype, self.dim = weight.dtype, weight.width
        self.states = tuple(states)

    def _layout(self) -> list[StateSpec]:
        """Return what a row consists of, the weight first."""
        found: dict[str, Tensor] = {"weight": self.weight, **self.state_rows()}
        return [
            StateSpec(name=name, dtype=str(rows.dtype).removeprefix("torch."), width=math.prod(rows.shape[1:]))
            for name, rows in found.items()
        ]

    def _has_rows(self, name: object, value: Any) -> bool:
        return isinstance(name, str) and name != "weight" and is_rows(value) and len(value) == len(self.weight)

    def _is_as_seen(self, now: Mapping[str, tuple[Tensor, int, int]]) -> bool:
        return self._seen.keys() <= now.keys() and all(_is_same(seen, now[name]) for name, seen in self._seen.items())

    def _present(self) -> dict[str, tuple[Tensor, int, int]]:
        found: Mapping[str, Tensor] = {"weight": self.weight, **self.state_rows()}
        return {name: (rows, rows._version, rows.data_ptr()) for name, rows in found.items()}

    def _all_ids(self) -> Iterator[Ids]:
        num_rows = self.num_tracked_rows()
        for first in range(0, num_rows, ROWS_AT_ONCE):
            yield np.arange(first, min(first + ROWS_AT_ONCE, num_rows))

    def _say(self, level: int, text: str) -> None:
        """Log it once in the life of this object."""
        if text not in self._said and not self.is_copy:
            self._said.add(text)
            log.log(level, text, self.name)


def is_rows(value: Any) -> bool:
    """Return whether a tensor can be saved row by row: it lies in one piece, and has a dtype of the format."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.dim() >= 1
        and value.numel() > 0
        and value.is_contiguous()
        and str(value.dtype).removeprefix("torch.") in ITEM_BYTES
        and not hasattr(value, "full_tensor")
        and value.device.type != "meta"
    )


def _as_rows(state: Tensor) -> Tensor:
    return state.detach().view(len(state), -1)


def _is_same(seen: tuple[Tensor, int, int], now: tuple[Tensor, int, int]) -> bool:
    return seen[0] is now[0] and seen[1:] == now[1:]
