"""A batch's lines arrive byte for byte, and what is no batch is refused as a whole."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.collector.batch import MAX_LINES, Block, decode, encode
from ett.collector.body import MAX_SENT_BYTES, MAX_UNPACKED_BYTES, BodyTooLarge, unpack
from ett.errors import DataError

lines = st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=5).map(tuple)
names = st.from_regex(r"\d{1,3}/[a-z0-9-]{1,12}\.jsonl", fullmatch=True)
blocks = st.lists(st.builds(Block, job=st.just("ads-7f3a"), file=names, lines=lines), max_size=4)


@pytest.mark.slow
@given(blocks)
def test_decoding_gives_back_every_byte_of_every_line(sent: list[Block]) -> None:
    assert decode(encode(sent)) == sent


def head(**changed: object) -> bytes:
    return json.dumps({"job": "j", "file": "1/r0-h.jsonl", "lines": 0} | changed).encode() + b"\n"


@pytest.mark.parametrize(
    "body",
    [
        b"hello\n",
        b"[]\n",
        b"\n",
        head(job="../../etc"),
        head(job=7),
        head(file="../../../etc/passwd"),
        head(file="1/../2.jsonl"),
        head(file="/etc/passwd.jsonl"),
        head(file="1/a.jsonl\n"),
        head(lines=-1),
        head(lines=True),
        head(lines=MAX_LINES + 1),
        head(lines=2) + b"only one\n",
        head(lines=1) + b"no end",
        head(file="1/" + "x" * 2000 + ".jsonl"),
        b'{"job": "j", ' + b"[" * 500,
    ],
)
def test_a_malformed_batch_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(DataError):
        decode(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_batch_or_a_data_error(body: bytes) -> None:
    try:
        decode(unpack(body, "gzip") if body[:1] == b"\x1f" else body)
    except DataError:
        return


@pytest.mark.slow
def test_a_gzip_bomb_is_refused_at_the_limit() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20), compresslevel=1)
    assert len(bomb) < MAX_SENT_BYTES
    with pytest.raises(BodyTooLarge):
        unpack(bomb, "gzip")


@pytest.mark.slow
def test_a_body_that_unpacks_to_more_than_the_absolute_limit_is_refused() -> None:
    noise = b"".join(zlib.crc32(bytes([i % 251, i % 13])).to_bytes(4, "big") * 25 for i in range(90_000))
    packed = gzip.compress(noise)
    assert len(noise) > MAX_UNPACKED_BYTES
    with pytest.raises(BodyTooLarge):
        unpack(packed + b"", "gzip")


def test_a_small_body_may_shrink_as_much_as_it_likes() -> None:
    same = b"x" * 200_000
    assert unpack(gzip.compress(same), "gzip") == same


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b"x", mtime=0)[:-3], "gzip"),
        (b"no gzip", "gzip"),
        (gzip.compress(b"x", mtime=0) * 2, "gzip"),
        (b"x", "br"),
    ],
)
def test_a_body_of_another_or_a_broken_encoding_is_malformed(body: bytes, encoding: str) -> None:
    with pytest.raises(DataError) as caught:
        unpack(body, encoding)
    assert not isinstance(caught.value, BodyTooLarge)
