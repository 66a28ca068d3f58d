"""The native index and its numpy reference against a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.sparse.id_index import NATIVE, IdIndex, id_index
from ett.trainer.sparse.numpy_id_index import NumpyIdIndex

INT64 = st.integers(-(2**63), 2**63 - 1)
# Small ranges make the same id come again; the full range holds the extremes.
ID_LISTS = st.lists(st.one_of(INT64, st.integers(-3, 40)), max_size=60)
CHANGES = st.lists(st.tuples(st.sampled_from(["insert", "insert", "erase"]), ID_LISTS), max_size=10)
BOTH = pytest.mark.parametrize("new_index", [id_index, NumpyIdIndex], ids=["built", "numpy"])
NewIndex = Callable[[], IdIndex]


def array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


class Model:
    """The index in ten lines of dictionary."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.free: list[int] = []
        self.num_slots = 0

    def insert(self, ids: list[int]) -> list[int]:
        for i in ids:
            if self.free:
                self.slots[i] = self.free.pop()
            else:
                self.slots[i], self.num_slots = self.num_slots, self.num_slots + 1
        return [self.slots[i] for i in ids]

    def erase(self, ids: list[int]) -> list[int]:
        erased = [self.slots.pop(i, -1) for i in ids]
        self.free += [slot for slot in erased if slot >= 0]
        return erased


@BOTH
@given(changes=CHANGES)
@pytest.mark.slow
def test_it_answers_like_a_dictionary_after_any_inserts_and_erasures(
    new_index: NewIndex, changes: list[tuple[str, list[int]]]
) -> None:
    index, model = new_index(), Model()
    for change, ids in changes:
        assert index.find(array(ids)).tolist() == [model.slots.get(i, -1) for i in ids]
        if change == "insert":
            new = [i for i in dict.fromkeys(ids) if i not in model.slots]
            assert index.insert(array(new)).tolist() == model.insert(new)
        else:
            assert index.erase(array(ids)).tolist() == model.erase(ids)
        assert (len(index), index.num_slots) == (len(model.slots), model.num_slots)
        found, slots = index.items()
        assert dict(zip(found.tolist(), slots.tolist(), strict=True)) == model.slots


@BOTH
@pytest.mark.slow
def test_many_ids_are_found_after_growing_erasing_and_growing_again(new_index: NewIndex) -> None:
    index = new_index()
    ids = np.random.default_rng(1).permutation(200_000).astype(np.int64) * 8
    for part in np.array_split(ids, 7):
        index.insert(part)
    assert (index.find(ids) == np.arange(len(ids))).all()
    assert (index.find(ids + 1) == -1).all()
    gone, kept = ids[::2].copy(), ids[1::2].copy()
    assert (index.erase(gone) == np.arange(0, len(ids), 2)).all()
    assert (index.find(gone) == -1).all()
    index.insert(ids + 1)
    assert (index.find(kept) == np.arange(1, len(ids), 2)).all()
    assert len(np.unique(index.find(ids + 1))) == len(ids)


@BOTH
@pytest.mark.parametrize("ids", [[5, 6, 5], [6, 2]], ids=["twice in the batch", "known already"])
def test_a_double_is_refused_by_its_id_and_changes_nothing(new_index: NewIndex, ids: list[int]) -> None:
    index = new_index()
    index.insert(array([1, 2, 3]))
    index.erase(array([1]))
    with pytest.raises(ValueError, match=rf"id {ids[-1]} is in the index"):
        index.insert(array(ids))
    assert (len(index), index.num_slots) == (2, 3)
    assert index.find(array([5, 6, 2, 3])).tolist() == [-1, -1, 1, 2]
    assert index.insert(array([7, 8])).tolist() == [0, 3]


@BOTH
def test_a_cleared_index_knows_nothing(new_index: NewIndex) -> None:
    index = new_index()
    index.insert(np.arange(100))
    index.erase(np.arange(7))
    index.clear()
    assert (len(index), index.num_slots) == (0, 0)
    assert (index.find(np.arange(100)) == -1).all()
    assert index.insert(np.arange(5)).tolist() == [0, 1, 2, 3, 4]


def needs_native() -> None:
    if NATIVE is None:
        pytest.skip("the extension is not built")


def test_several_threads_give_the_slots_of_one() -> None:
    needs_native()
    one, four = id_index(1), id_index(4)
    ids = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 300_000)
    for part in np.array_split(ids, 2):
        assert (one.insert(part) == four.insert(part)).all()
    assert (four.find(ids) == one.find(ids)).all()
    double = np.concatenate((ids[:1] + 1, ids[7:8], np.arange(200_000), ids[3:4]))
    with pytest.raises(ValueError, match=str(ids[7])):
        four.insert(double)
    assert len(four) == len(ids)


def test_lookups_run_beside_inserts_and_see_each_batch_wholly_or_not_at_all() -> None:
    needs_native()
    index = id_index()
    batches = np.random.default_rng(3).permutation(400_000).astype(np.int64).reshape(40, -1)

    def look_up(_: int) -> bool:
        found = [index.find(batch) >= 0 for batch in batches]
        return all(known.all() or not known.any() for known in found)

    with ThreadPoolExecutor(3) as pool:
        looking = pool.map(look_up, range(6))
        for batch in batches:
            index.insert(batch)
        assert all(looking)
    assert (index.find(batches.ravel()) == np.arange(batches.size)).all()


@pytest.mark.slow
def test_an_id_costs_at_most_25_bytes_at_any_size() -> None:
    needs_native()
    index = id_index()
    rng = np.random.default_rng(4)
    for size in np.geomspace(50_000, 2_000_000, 25).astype(int):
        index.insert(np.unique(rng.integers(-(2**63), 2**63 - 1, size - len(index))))
        assert index.bytes / len(index) <= 25


def test_an_array_of_another_type_is_refused_rather_than_rounded() -> None:
    needs_native()
    with pytest.raises(TypeError):
        id_index().find(cast("np.ndarray", np.array([1.5])))
