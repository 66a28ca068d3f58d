"""Every tier, and caches over tiers, against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from tier_stores import REDIS_STORES, STORES, OpenStore

ROW_BYTES = 12
every_store = pytest.mark.parametrize("open_store", [*STORES, *REDIS_STORES], indirect=True)


class DictOfRows:
    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}

    def assert_read(self, ids: np.ndarray, out: np.ndarray, known: np.ndarray) -> None:
        for i, row, is_known in zip(ids.tolist(), out, known.tolist(), strict=True):
            assert is_known == (i in self.rows)
            assert row.tobytes() == self.rows.get(i, b"\xee" * ROW_BYTES)


@pytest.mark.slow
@every_store
@pytest.mark.parametrize("seed", range(3))
def test_a_store_answers_as_a_dict_does(open_store: OpenStore, seed: int) -> None:
    store, model, rng = open_store("weights", ROW_BYTES), DictOfRows(), np.random.default_rng(seed)
    universe = rng.integers(-(2**63), 2**63 - 1, 40)
    for _ in range(150):
        ids = rng.permutation(universe)[: rng.integers(0, 9)]
        match rng.integers(0, 5):
            case 0 | 1:
                rows = rng.integers(0, 256, (len(ids), ROW_BYTES), np.uint8)
                store.write(ids, rows)
                model.rows |= {i: row.tobytes() for i, row in zip(ids.tolist(), rows, strict=True)}
            case 2 | 3:
                out = np.full((len(ids), ROW_BYTES), 0xEE, np.uint8)
                model.assert_read(ids, out, store.read(ids, out))
            case _:
                store.free(ids[:3])
                for i in ids[:3].tolist():
                    model.rows.pop(i, None)
        assert len(store) == len(model.rows)
        assert store.contains(universe).tolist() == [i in model.rows for i in universe.tolist()]
    assert store.ids().tolist() == sorted(model.rows)
    store.clear()
    assert (len(store), store.ids().tolist()) == (0, [])
    store.close()


@every_store
@pytest.mark.slow
def test_more_rows_than_one_step_holds_come_back(open_store: OpenStore) -> None:
    store = open_store("weights", ROW_BYTES)
    ids = np.arange(30_000) * -7
    rows = np.random.default_rng(1).integers(0, 256, (len(ids), ROW_BYTES), np.uint8)
    store.write(ids, rows)
    out = np.zeros_like(rows)
    assert store.read(ids[::-1].copy(), out).all()
    assert np.array_equal(out[::-1], rows)
    store.close()
