"""This rank's rows of one table: weights and optimizer state by slot, reached by id."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows
from ett.checkpoint.table_lock import TableLock
from ett.checkpoint.tracked_table import NOBODY_TRACKS, RowChanges
from ett.errors import ConfigError, DataError
from ett.trainer.sparse.hashing import Ids, RowInit, owner_key, row_owner, table_salt
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.row_ledger import RowLedger
from ett.trainer.sparse.row_optimizer import RowOptimizer, RowsOfTable
from ett.trainer.sparse.row_rules import UNBOUNDED, RowRules
from ett.trainer.sparse.row_sums import RowSums, each_row
from ett.trainer.sparse.sightings import Sightings
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, Tiers
from ett.trainer.sparse.told_rows import ToldRows


class EmbeddingShard(nn.Module):
    """Implements `TableShard` and `TrackedTable` of `ett.checkpoint`.

    Its storage is neither parameter nor buffer: it grows, lies in tiers, and no rank holds all of it. A row exists from
    the first update on; before, `read` computes its initial value, so looking up for evaluation adds nothing.
    """

    def __init__(
        self,
        name: str,
        init: RowInit,
        optimizer: RowOptimizer,
        *,
        dim: int,
        num_rows: int,
        rank: int,
        world_size: int,
        rules: RowRules = UNBOUNDED,
        tiers: Tiers = IN_MEMORY,
    ) -> None:
        """Start empty.

        Args:
            name: the table's name in checkpoints, such as "embedding_bags.t_C1".
            dim: elements of a row.
            num_rows: ids must be in [0, num_rows); 0 takes any int64.
            rank, world_size: decide which ids are owned.
            rules: which ids become rows, and which rows go.
            tiers: where rows lie; changes no bit of any of them.
        """
        super().__init__()
        self.name = name
        self.dim = dim
        self.weight_dtype = "float32"
        self.num_rows = num_rows
        self.owner_key = owner_key(table_salt(name))
        self._init = init
        self._optimizer = optimizer
        self._rank, self._world_size = rank, world_size
        self._rules = rules
        optimizer_states = optimizer.states(dim)
        self._storage = tiers.storage(name, dim, optimizer_states)
        self._ledger = RowLedger(rules) if rules.has_ledger else None
        self.states: tuple[StateSpec, ...] = optimizer_states + (RowLedger.states if self._ledger else ())
        self.sightings: Sightings | None = None
        if rules.admit_after > 1:
            self.sightings = Sightings(
                f"{name}.sightings", rules.admit_after, owner_key=self.owner_key, rank=rank, world_size=world_size
            )
        self._tombstones = id_index()
        self.lock = TableLock()  # of the storage: one thread may read rows while another one updates others
        self.tracked_by: RowChanges = NOBODY_TRACKS
        self._told: ToldRows | None = None  # once somebody tracks
        self._num_ahead = 0  # batches that are announced and have not passed

    def __len__(self) -> int:
        """Return the number of rows that this rank holds."""
        return len(self._storage)

    @property
    def evicts(self) -> bool:
        """Whether an update may change rows of other ids than its own."""
        return self._rules.has_ledger

    @property
    def updates_whole(self) -> bool:
        """Whether a step's rows are one update: more than a row's own gradients and state says what becomes of it."""
        return self._rules.has_ledger or bool(self._rules.max_rows) or self.sightings is not None

    def read(self, ids: Ids, out: Tensor) -> None:
        """Write the rows of ids (int64 [N], unique, owned) to out, float32 [N, dim].

        Raises: DataError: an id outside a fixed table.
        """
        self._check_range(ids)
        with self.lock:
            unknown = np.flatnonzero(~self._storage.read(ids, out))
        if len(unknown):
            out[torch.from_numpy(unknown)] = self._initial(ids[unknown])

    def update(self, ids: Ids, grads: Tensor, learning_rate: float) -> None:
        """Take one optimizer step with the summed gradients of ids: int64 [N] unique and owned, float32 [N, dim].

        See `update_sums`.
        """
        self.update_sums(ids, each_row(grads), learning_rate)

    def update_sums(self, ids: Ids, sums: RowSums, learning_rate: float) -> None:
        """Take one optimizer step with the sum of gradients of each id: int64 [N] unique and owned.

        Ids that are not admitted yet are counted, and their gradients dropped. A step's rows may come in several calls
        unless `updates_whole`: each row's update is a function of its own gradients and state.
        Raises: ConfigError: the table is full, or the batch's rows do not fit the cache.
        """
        with self.lock:
            self._update(ids, sums, learning_rate)

    def _update(self, ids: Ids, sums: RowSums, learning_rate: float) -> None:
        if self.sightings is not None:
            is_row = self._storage.contains(ids)
            is_row[~is_row] = self.sightings.admit(ids[~is_row])
            ids, sums = ids[is_row], sums.at(np.flatnonzero(is_row))
        if not len(ids):
            return
        self._make_room(ids)
        told = self._told
        with self._storage.opened(ids, self._initial) as rows, told.updating(ids, rows) if told else nullcontext():
            if rows.slots is not None:
                table = RowsOfTable(rows.weights, rows.states, rows.slots)
                self._optimizer.update_rows(table, sums, learning_rate)
            else:
                weights = rows.weights[rows.weight_slots]
                states = {name: state[rows.state_slots] for name, state in rows.states.items()}
                self._optimizer.update_rows(RowsOfTable(weights, states), sums, learning_rate)
                rows.weights.index_copy_(0, rows.weight_slots, weights)
                for name, state in states.items():
                    rows.states[name].index_copy_(0, rows.state_slots, state)
        if self._ledger is not None:
            self._ledger.touch(ids)
        if len(self._tombstones):
            self._tombstones.erase(ids)

    def announced(self, ids: Ids) -> None:
        """Learn that a batch will look ids up, int64 [N] distinct, and most likely update them."""
        with self.lock:
            self._num_ahead += 1
            if self._told is not None:
                self._told.announced(ids)

    def passed(self) -> None:
        """Learn that the batch that was announced first, of those that have not passed, changes no row any more."""
        with self.lock:
            self._num_ahead -= 1
            if self._told is not None:
                self._told.passed()

    def take_tombstones(self) -> Ids:
        """Return, ascending, the ids whose rows were evicted since the last call or export and are no rows now.

        What holds an earlier state, such as a chain of deltas or a serving copy, must forget them.
        """
        ids = np.sort(self._tombstones.items()[0])
        self._tombstones.clear()
        return ids

    def track(self, changes: RowChanges) -> None:
        with self.lock:
            self.tracked_by = changes
            is_told = changes is not NOBODY_TRACKS
            self._told = ToldRows(changes, self._storage, self._num_ahead) if is_told else None

    def touched(self, ids: Ids | None) -> None:
        with self.lock:
            if self._told is not None:
                self._told.touched(ids)

    def num_tracked_rows(self) -> int:
        return len(self)

    def tracked_ids(self) -> Ids:
        assert self._told is not None
        return self._told.ids()

    def slots_of(self, ids: Ids) -> Ids:
        assert self._told is not None
        return self._told.slots_of(ids)

    def ids_of_slots(self, slots: Ids) -> Ids:
        assert self._told is not None
        return self._told.ids_of_slots(slots)

    def begin_export(self) -> Tensor:
        """See `TableShard`. All that exists is named, so tombstones begin anew."""
        self._tombstones.clear()
        return torch.from_numpy(self._storage.ids())

    def gather(self, ids: Tensor, out: TableRows) -> None:
        rows = ids.numpy()
        self._storage.gather(rows, out.weights, out.states)
        if self._ledger is not None:
            self._ledger.gather(rows, out.states)

    def owned(self, ids: Tensor) -> Tensor:
        owners = row_owner(ids.numpy(), self.owner_key, self._world_size)
        return torch.from_numpy(owners == self._rank)

    @property
    def is_rows_alone(self) -> bool:
        return self._ledger is None  # which counts the table's updates, and makes rows give way to others

    def begin_rollback(self, ids: Ids) -> None:
        """See `ett.checkpoint.kept_rows.KeepsRows`."""
        self.track(NOBODY_TRACKS)
        self._storage.free(ids)
        self._storage.reserve(len(self) + len(ids))
        self._tombstones.clear()

    def leave_batches(self) -> None:
        """Learn that the batches that were announced will not pass: those who announced them have ended."""
        with self.lock:
            self._num_ahead = 0

    def begin_import(self, num_rows: int) -> None:
        self.track(NOBODY_TRACKS)  # who is told knows rows that go now
        self._storage.clear()
        self._storage.reserve(num_rows)
        self._tombstones.clear()
        if self._ledger is not None:
            self._ledger.clear()

    def import_rows(self, rows: TableRows) -> None:
        ids = rows.ids.numpy()
        self._storage.fill(ids, rows.weights, {s.name: rows.states[s.name] for s in self._optimizer.states(self.dim)})
        if self._ledger is not None:
            self._ledger.fill(ids, rows.states)

    def end_import(self) -> None:
        """Nothing is left to do: an id without a row has its initial value."""

    def _initial(self, ids: Ids) -> Tensor:
        return torch.from_numpy(self._init.rows(ids))

    def _make_room(self, ids: Ids) -> None:
        """Evict what the rules say before ids are updated. What is read ahead has no say: depth changes no bit."""
        rules, ledger = self._rules, self._ledger
        if ledger is not None:
            self._evict(ledger.too_old(keep=ids))
        if not rules.max_rows:
            return
        num_new = int((~self._storage.contains(ids)).sum())
        num_excess = len(self) + num_new - rules.max_rows
        if num_excess <= 0 or not num_new:
            return
        evicts = rules.when_full != "error"
        if ledger is not None and evicts and len(ids) <= rules.max_rows:
            self._evict(ledger.victims(num_excess, keep=ids))
            return
        raise ConfigError(
            f"table {self.name} is full: it holds {len(self)} rows on rank {self._rank}, and a batch of {len(ids)} ids "
            f"brings {num_new} new ones",
            expected=f"at most {rules.max_rows} rows of it on a rank: max_rows in [sparse.tables] or [sparse]",
            do="raise that bound, or " + ("lower train.batch_size" if evicts else "set sparse.when_full: lru or lfu"),
        )

    def _evict(self, ids: Ids) -> None:
        if not len(ids):
            return
        assert self._ledger is not None
        if self._told is not None:
            self._told.evicted(ids)
        self._storage.free(ids)
        self._ledger.free(ids)
        self._tombstones.insert(ids)

    def _check_range(self, ids: Ids) -> None:
        if not self.num_rows or not len(ids):
            return
        wrong = ids[(ids < 0) | (ids >= self.num_rows)]
        if len(wrong):
            raise DataError(
                f"table {self.name}: id {wrong[0]} is out of range ({len(wrong)} such ids in this batch)",
                expected=f"ids in [0, {self.num_rows})",
                do="raise num_embeddings, or set it to 0 for a table that grows",
            )
