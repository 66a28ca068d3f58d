from __future__ import annotations

import numpy as np
import pytest
import torch

from ett.checkpoint.policy.table_tracker import TableTracker
from ett.checkpoint.table import TableRows, TableShard, copy_of_rows
from ett.checkpoint.tracked_table import NOBODY_TRACKS, NobodyTracks
from ett.errors import DataError
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit, owner_key, row_owner, table_salt
from ett.trainer.sparse.row_optimizer import row_optimizer

DIM = 3
IDS = np.sort(np.random.default_rng(2).choice(2**62, 500, replace=False))


def make_shard(rank: int = 0, world_size: int = 1, num_rows: int = 0) -> EmbeddingShard:
    init = RowInit("t", seed=1, dim=DIM, scale=0.1)
    optimizer = row_optimizer(SparseConfig(optimizer="adam"))
    return EmbeddingShard("t", init, optimizer, dim=DIM, num_rows=num_rows, rank=rank, world_size=world_size)


def trained_shard() -> EmbeddingShard:
    shard = make_shard()
    for part in np.array_split(np.random.default_rng(4).permutation(IDS), 3):
        shard.update(np.sort(part), torch.ones(len(part), DIM), 0.1)
    return shard


def assert_same_rows(left: TableRows, right: TableRows) -> None:
    assert torch.equal(left.ids, right.ids)
    assert torch.equal(left.weights, right.weights)
    assert left.states.keys() == right.states.keys()
    assert all(torch.equal(left.states[name], right.states[name]) for name in left.states)


def test_a_shard_is_a_table_shard_of_the_checkpoint() -> None:
    assert isinstance(make_shard(), TableShard)


def test_exported_rows_are_sorted_by_id() -> None:
    assert torch.equal(copy_of_rows(trained_shard()).ids, torch.from_numpy(IDS))


def test_importing_what_was_exported_is_the_identity() -> None:
    rows, shard = copy_of_rows(trained_shard()), make_shard()
    for part in (slice(None, 200), slice(200, None)):
        states = {name: state[part] for name, state in rows.states.items()}
        shard.import_rows(TableRows(ids=rows.ids[part], weights=rows.weights[part], states=states))
    assert_same_rows(copy_of_rows(shard), rows)


def test_an_imported_shard_trains_on_as_the_exported_one() -> None:
    first, second = trained_shard(), make_shard()
    second.import_rows(copy_of_rows(first))
    for shard in (first, second):
        shard.update(IDS[::7], torch.full((len(IDS[::7]), DIM), 0.3), 0.1)
    assert_same_rows(copy_of_rows(first), copy_of_rows(second))


def test_initial_rows_depend_on_the_id_alone() -> None:
    once, again = torch.empty(len(IDS), DIM), torch.empty(len(IDS), DIM)
    make_shard().read(IDS, once)
    shard = make_shard(rank=1, world_size=3)
    shard.update(IDS[::2], torch.zeros(len(IDS[::2]), DIM), 0.1)
    shard.read(IDS, again)
    assert torch.equal(once, again)
    assert once.abs().max() <= 0.1
    assert len(once.unique()) > len(IDS)


def test_reading_adds_no_row() -> None:
    shard = make_shard()
    shard.read(IDS, torch.empty(len(IDS), DIM))
    assert len(shard) == 0


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_id_has_one_owner(world_size: int) -> None:
    owned = torch.stack([make_shard(rank, world_size).owned(torch.from_numpy(IDS)) for rank in range(world_size)])
    assert (owned.sum(dim=0) == 1).all()
    owners = row_owner(IDS, owner_key(table_salt("t")), world_size)
    assert np.bincount(owners, minlength=world_size).min() > len(IDS) / world_size / 2


@pytest.mark.parametrize("wrong", [-1, 10])
def test_an_id_outside_a_fixed_table_is_an_error_that_names_table_and_id(wrong: int) -> None:
    shard = make_shard(num_rows=10)
    with pytest.raises(DataError, match=rf"table t: id {wrong} is out of range"):
        shard.read(np.array([0, wrong, 9]), torch.empty(3, DIM))


def test_nobody_is_told_of_changes_any_more() -> None:
    class Count(NobodyTracks):
        num_updates = 0

        def updated(self, slots: np.ndarray, ids: np.ndarray) -> None:
            self.num_updates += 1

    shard, count = make_shard(), Count()
    shard.track(count)
    shard.update(IDS, torch.zeros(len(IDS), DIM), 0.1)
    shard.track(NOBODY_TRACKS)
    shard.update(IDS, torch.zeros(len(IDS), DIM), 0.1)
    assert count.num_updates == 1 and shard._told is None  # so it costs nothing either
    shard.track(count)
    shard.update(IDS, torch.zeros(len(IDS), DIM), 0.1)
    assert count.num_updates == 2


def test_new_rows_of_a_step_that_fails_are_told_of_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, tracker = make_shard(), TableTracker()
    shard.track(tracker)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as during:
        during.setattr(type(shard._optimizer), "update_rows", fail)
        with pytest.raises(MemoryError):
            shard.update(IDS[:4], torch.ones(4, DIM), 0.1)
    assert len(shard) == 0
    shard.update(IDS[2:5], torch.ones(3, DIM), 0.1)
    tracker.freeze()
    changes = tracker.changes(shard.ids_of_slots)
    assert (sorted(changes.ids), list(changes.tombstones)) == (list(IDS[2:5]), list(IDS[:2]))


def test_who_was_told_before_an_import_is_told_no_more() -> None:
    shard, rows = make_shard(), copy_of_rows(trained_shard())
    shard.track(TableTracker())
    shard.begin_import(len(rows.ids))
    assert shard.tracked_by is NOBODY_TRACKS
