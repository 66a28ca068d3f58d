from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.sparse.id_index import IdIndex

INT64 = st.integers(-(2**63), 2**63 - 1)
# Small ranges make the same id come again; the full range holds the extremes.
BATCHES = st.lists(st.lists(st.one_of(INT64, st.integers(-3, 40)), max_size=60, unique=True), max_size=8)


@given(batches=BATCHES)
def test_every_id_keeps_the_slot_that_it_was_given(batches: list[list[int]]) -> None:
    index, model = IdIndex(), dict[int, int]()
    for batch in batches:
        ids = np.array(batch, np.int64)
        assert index.find(ids).tolist() == [model.get(i, -1) for i in batch]
        unknown = np.array([i for i in batch if i not in model], np.int64)
        model |= dict(zip(unknown.tolist(), index.insert(unknown).tolist(), strict=True))
    assert index.find(np.array(list(model), np.int64)).tolist() == list(model.values())
    assert index.ids.tolist() == list(model)


def test_an_index_of_many_ids_finds_all_of_them_after_growing() -> None:
    index = IdIndex()
    ids = np.random.default_rng(1).permutation(200_000).astype(np.int64) * 8
    for part in np.array_split(ids, 7):
        index.insert(part)
    assert (index.find(ids) == np.arange(len(ids))).all()
    assert (index.find(ids + 1) == -1).all()


def test_a_cleared_index_knows_nothing() -> None:
    index = IdIndex()
    index.insert(np.arange(100))
    index.clear()
    assert len(index) == 0
    assert (index.find(np.arange(100)) == -1).all()
