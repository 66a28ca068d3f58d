"""Packed ids unpack to the same ids, from the lowest to the highest int64; damage never passes for ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ett.checkpoint.id_codec import pack_ids, unpack_ids

LOW, HIGH = -(2**63), 2**63 - 1
id_lists = st.sets(
    st.one_of(st.integers(LOW, HIGH), st.integers(0, 300), st.sampled_from([LOW, HIGH, 0, 2**32, 2**32 - 1])),
    min_size=1,
    max_size=200,
).map(lambda ids: np.array(sorted(ids), np.int64))


@given(id_lists)
def test_packing_is_reversible(ids: np.ndarray) -> None:
    codec, payload = pack_ids(ids)
    found = unpack_ids(codec, memoryview(payload), int(ids[0]), len(ids))
    assert found is not None
    assert found.dtype == np.int64
    assert np.array_equal(found, ids)


@given(id_lists, st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_another_count_is_refused(ids: np.ndarray, more: int) -> None:
    codec, payload = pack_ids(ids)
    if len(ids) > 1:
        assert unpack_ids(codec, memoryview(payload), int(ids[0]), len(ids) + more) is None


@given(st.binary(max_size=64), st.integers(-5, 5))
def test_any_bytes_unpack_to_ids_or_nothing(payload: bytes, count: int) -> None:
    found = unpack_ids(1, memoryview(payload), 7, count)
    assert found is None or len(found) == count


def test_dense_ids_take_a_fraction_of_a_byte() -> None:
    _, payload = pack_ids(np.arange(100_000, dtype=np.int64))
    assert len(payload) < 1000
