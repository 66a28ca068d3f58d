"""Packed ids unpack to the same ids, from the lowest to the highest int64; damage never passes for ids."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ett.checkpoint import id_codec
from ett.checkpoint.id_codec import pack_ids, unpack_ids

LOW, HIGH = -(2**63), 2**63 - 1
id_lists = st.sets(
    st.one_of(st.integers(LOW, HIGH), st.integers(0, 300), st.sampled_from([LOW, HIGH, 0, 2**32, 2**32 - 1])),
    min_size=1,
    max_size=200,
).map(lambda ids: np.array(sorted(ids), np.int64))


@pytest.mark.slow
@given(id_lists)
def test_packing_is_reversible(ids: np.ndarray) -> None:
    codec, payload = pack_ids(ids)
    found = unpack_ids(codec, memoryview(payload), int(ids[0]), len(ids))
    assert found is not None
    assert found.dtype == np.int64
    assert np.array_equal(found, ids)


@pytest.mark.slow
@given(id_lists, st.integers(0, 2**31), st.binary(max_size=64))
def test_native_code_unpacks_what_numpy_does(ids: np.ndarray, first: int, damage: bytes) -> None:
    assert id_codec.NATIVE is not None
    codec, payload = pack_ids(ids)
    frame = zstandard.ZstdCompressor().compress(damage[: len(damage) // 4 * 4])
    for packed, start, count in ((payload, int(ids[0]), len(ids)), (frame, first, len(damage) // 4 + 1)):
        native = unpack_ids(codec, memoryview(packed), start, count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(id_codec, "NATIVE", None)
            plain = unpack_ids(codec, memoryview(packed), start, count)
        assert (native is None) == (plain is None)
        assert native is None or np.array_equal(native, plain)


@pytest.mark.slow
@given(id_lists)
def test_native_code_packs_what_numpy_does(ids: np.ndarray) -> None:
    native = pack_ids(ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_codec, "NATIVE", None)
        assert native == pack_ids(ids)


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
