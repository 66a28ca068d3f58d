from __future__ import annotations

import numpy as np
import pytest

from ett.checkpoint.table import StateSpec
from ett.errors import ConfigError, Unreachable
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.tiers.host_rows import HostRows
from ett.trainer.sparse.tiers.row_cache import RowCache
from ett.trainer.sparse.tiers.row_layout import RowLayout
from ett.trainer.sparse.tiers.row_store import Bytes

LAYOUT = RowLayout([StateSpec(name="bytes", dtype="uint8", width=4)])


class FailingRows(HostRows):
    """A lower tier that refuses to write while `is_full`."""

    is_full = False

    def write(self, ids: Ids, rows: Bytes) -> None:
        if self.is_full:
            raise Unreachable("no space left")
        super().write(ids, rows)


def cache_of(capacity: int, num_below: int = 0) -> tuple[RowCache, FailingRows]:
    lower = FailingRows(LAYOUT.row_bytes)
    lower.write(np.arange(num_below), rows_of(np.arange(num_below)))
    return RowCache("t", LAYOUT, lower, capacity, "sparse.cache_rows"), lower


def rows_of(ids: Ids, salt: int = 0) -> Bytes:
    return np.repeat((ids[:, None] + salt) % 256, 4, axis=1).astype(np.uint8)


def rows_in(cache: RowCache, ids: Ids) -> Bytes:
    out = np.zeros((len(ids), 4), np.uint8)
    assert cache.read(ids, out).all()
    return out


def test_rows_in_use_are_never_evicted() -> None:
    cache, _ = cache_of(4, num_below=100)
    held = cache.pin(np.array([1, 2]))
    for i in range(3, 90, 2):
        rows_in(cache, np.array([i, i + 1]))
    assert cache.columns["bytes"].numpy()[held.slots].tolist() == rows_of(np.array([1, 2])).tolist()


def test_a_batch_larger_than_the_cache_is_an_error_that_names_table_and_sizes() -> None:
    cache, _ = cache_of(4, num_below=100)
    with pytest.raises(ConfigError, match=r"table t: a batch uses 5 rows at once, and the cache of 4 holds 0"):
        cache.pin(np.arange(5))
    held = cache.pin(np.arange(4))
    cache.unpin(held)
    assert np.array_equal(rows_in(cache, np.arange(4)), rows_of(np.arange(4)))


def test_batches_in_flight_count() -> None:
    cache, _ = cache_of(4, num_below=100)
    held = cache.pin(np.array([1, 2, 3]))
    with pytest.raises(ConfigError, match=r"a batch uses 2 rows at once, and the cache of 4 holds 3 that are in use"):
        cache.pin(np.array([7, 8]))
    assert np.array_equal(rows_in(cache, np.array([7, 8])), rows_of(np.array([7, 8])))  # passes the cache by
    cache.unpin(held)
    cache.unpin(cache.pin(np.array([7, 8])))


def test_a_dirty_row_is_written_down_before_its_slot_is_given_away() -> None:
    cache, lower = cache_of(2)
    cache.write(np.array([1, 2]), rows_of(np.array([1, 2]), salt=9))
    assert len(lower) == 0
    cache.write(np.array([3]), rows_of(np.array([3])))
    assert len(lower) >= 1
    assert np.array_equal(rows_in(cache, np.array([1, 2])), rows_of(np.array([1, 2]), salt=9))


def test_a_row_that_cannot_be_written_down_stays() -> None:
    cache, lower = cache_of(2)
    cache.write(np.array([1, 2]), rows_of(np.array([1, 2])))
    lower.is_full = True
    with pytest.raises(Unreachable):
        cache.write(np.array([3]), rows_of(np.array([3])))
    assert (cache.ids().tolist(), len(cache), len(lower)) == ([1, 2], 2, 0)
    assert np.array_equal(rows_in(cache, np.array([1, 2])), rows_of(np.array([1, 2])))
    lower.is_full = False
    cache.write(np.array([3]), rows_of(np.array([3])))
    assert cache.ids().tolist() == [1, 2, 3]


def test_only_what_changed_is_written_down() -> None:
    cache, lower = cache_of(2, num_below=10)
    lower.is_full = True
    for i in range(0, 10, 2):
        rows_in(cache, np.array([i, i + 1]))


def test_the_least_recently_used_rows_go() -> None:
    cache, _ = cache_of(3, num_below=10)
    for i in (0, 1, 2, 0):
        rows_in(cache, np.array([i]))
    rows_in(cache, np.array([5]))
    assert (cache._index.find(np.arange(6)) >= 0).tolist() == [True, False, True, False, False, True]


def test_rows_to_be_made_are_none_where_the_body_raises() -> None:
    cache, lower = cache_of(4)
    with pytest.raises(ZeroDivisionError), cache.pinned(np.array([1, 2]), create=True):
        raise ZeroDivisionError
    assert (len(cache), cache.contains(np.array([1, 2])).any()) == (0, False)
    cache.flush()
    assert len(lower) == 0


def test_flush_writes_every_dirty_row_down() -> None:
    cache, lower = cache_of(4)
    cache.write(np.array([1, 2]), rows_of(np.array([1, 2])))
    cache.flush()
    assert lower.ids().tolist() == [1, 2]
    assert len(cache) == 2


def test_a_row_freed_under_a_batch_in_flight_is_gone_at_once() -> None:
    cache, _ = cache_of(4, num_below=4)
    held = cache.pin(np.array([1, 2]))
    cache.free(np.array([1]))
    assert cache.contains(np.array([1, 2])).tolist() == [False, True]
    cache.unpin(held)
    assert (cache._index.find(np.array([1, 2])) >= 0).tolist() == [False, True]


def test_a_slot_freed_under_a_batch_in_flight_is_given_to_no_other_row() -> None:
    cache, _ = cache_of(4, num_below=20)
    held = cache.pin(np.array([1, 2]))
    cache.free(np.array([1]))
    others = cache.pin(np.array([7, 8]))
    assert not set(others.slots.tolist()) & set(held.slots.tolist())
    with pytest.raises(ConfigError, match="holds 4 that are in use"):
        cache.pin(np.array([9]))
    cache.unpin(held)
    cache.unpin(cache.pin(np.array([9])))


def test_a_row_made_again_in_the_slot_of_a_freed_one_is_a_new_row() -> None:
    cache, lower = cache_of(4, num_below=4)
    held = cache.pin(np.array([1]))
    cache.free(np.array([1]))
    with cache.pinned(np.array([1]), create=True) as made:
        assert made.existed.tolist() == [False]
        assert made.slots.tolist() == held.slots.tolist()
        cache.columns["bytes"][made.slots] = 77
    cache.unpin(held)
    cache.flush()
    assert rows_in(cache, np.array([1])).tolist() == [[77] * 4]
    assert 1 in lower.ids()
