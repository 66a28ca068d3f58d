"""A file in a buffer is the one that was committed, to its last byte, or it is not sent and not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett.checkpoint.file_hash import is_intact, stored_bytes
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.segment_writer import SegmentWriter


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def unnoticed(path: Path, stored: StoredFile) -> list[int]:
    """Return the bytes whose flip is not seen."""
    data = path.read_bytes()
    assert is_intact(path, stored)
    missed = []
    for at in range(len(data)):
        path.write_bytes(flipped(data, at))
        if is_intact(path, stored):
            missed.append(at)
    return missed


@pytest.mark.slow
def test_every_byte_of_a_segment_counts(tmp_path: Path) -> None:
    """Also those at its end that its hash leaves out, because it stands there."""
    path = tmp_path / "t0000.base.w00000.0.seg"
    with path.open("wb") as file:
        writer = SegmentWriter(file, {"sections": []})
        writer.begin_section()
        writer.write_block(0, b"rows")
        length, digest = writer.finish()
    assert unnoticed(path, StoredFile(path=path.name, bytes=length, xxh3_128=digest)) == []


def test_every_byte_of_another_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "w00000.json"
    path.write_bytes(b"a fragment")
    assert unnoticed(path, stored_bytes(path.name, b"a fragment")) == []


def test_a_file_that_is_not_there_or_not_as_long_is_not_intact(tmp_path: Path) -> None:
    path, stored = tmp_path / "w00000.json", stored_bytes("w00000.json", b"a fragment")
    assert not is_intact(path, stored)
    path.write_bytes(b"a fragment ")
    assert not is_intact(path, stored)
