from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.data import gzip_stream
from ett.trainer.data.gzip_stream import DamagedGzip, GzipStream

TEXT = b"".join(b"line %d\n" % n for n in range(3000))


def unpacked(packed: bytes, size: int = 1 << 20) -> bytes:
    stream = GzipStream(io.BytesIO(packed))
    return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.slow
@given(
    members=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    level=st.integers(0, 9),
    padding=st.integers(0, 700),
    size=st.integers(1, 400),
    chunk=st.integers(1, 300),
)
def test_members_are_unpacked_one_after_another(
    members: list[bytes], level: int, padding: int, size: int, chunk: int
) -> None:
    packed = b"".join(gzip.compress(member, level) for member in members) + b"\0" * padding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_stream, "_PACKED_CHUNK_BYTES", chunk)
        assert unpacked(packed, size) == b"".join(members) == gzip.decompress(packed)


@pytest.mark.slow
@given(skipped=st.integers(0, len(TEXT) + 10))
def test_skipping_leaves_what_comes_after(skipped: int) -> None:
    stream = GzipStream(io.BytesIO(gzip.compress(TEXT[:9000]) + gzip.compress(TEXT[9000:])))
    stream.skip(skipped)
    assert b"".join(iter(lambda: stream.read(1 << 20), b"")) == TEXT[skipped:]


@pytest.mark.slow
@given(cut=st.integers(0, 2000))
def test_a_file_that_is_cut_off_anywhere_is_damaged_at_its_end(cut: int) -> None:
    packed = gzip.compress(TEXT)
    cut %= len(packed)
    with pytest.raises(DamagedGzip, match="ends within a member") as caught:
        unpacked(packed[:cut])
    assert caught.value.offset == cut


@pytest.mark.slow
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_passed_on_as_whole_data(at: int, bit: int) -> None:
    packed = bytearray(gzip.compress(TEXT, mtime=0))
    packed[at % len(packed)] ^= 1 << bit
    try:
        assert unpacked(bytes(packed)) == TEXT  # in the header there are bits that mean nothing
    except DamagedGzip as err:
        assert 0 <= err.offset <= len(packed)


def test_what_is_no_member_after_one_is_damage_with_its_place() -> None:
    packed = gzip.compress(TEXT)
    with pytest.raises(DamagedGzip, match=f"no gzip member begins at byte {len(packed):,} of the packed file"):
        unpacked(packed + b"garbage")


def test_a_damaged_member_after_others_is_named_by_a_place_within_it() -> None:
    first, second = gzip.compress(TEXT), bytearray(gzip.compress(TEXT[::-1]))
    second[-6] ^= 1
    with pytest.raises(DamagedGzip, match="incorrect data check") as caught:
        unpacked(first + bytes(second))
    assert len(first) <= caught.value.offset <= len(first) + len(second)
