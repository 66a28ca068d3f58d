"""What is written past the page cache, in any pieces and by a system that takes less than it is given, is all there."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ett.checkpoint import direct_file, local_store
from ett.checkpoint.buffer_pool import PAGE_BYTES, BufferPool
from ett.checkpoint.direct_file import DirectFile
from ett.checkpoint.local_store import LocalStore


def written(path: Path, pieces: list[memoryview], buffer_bytes: int) -> bytes:
    with BufferPool().taken(buffer_bytes) as buffer, closing(DirectFile(path, buffer)) as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
        file.flush()
    return path.read_bytes()


def random_pieces(rng: random.Random, memory: np.ndarray) -> list[memoryview]:
    """Return pieces of some memory: small ones, whole pages from a page on, and large ones that begin anywhere."""
    pieces = []
    for _ in range(rng.randrange(1, 30)):
        begin = rng.choice([0, PAGE_BYTES, rng.randrange(len(memory) // 2)])
        size = rng.choice([0, rng.randrange(100), PAGE_BYTES * rng.randrange(4), rng.randrange(len(memory) // 2)])
        pieces.append(memory[begin : begin + size].data)
    return pieces


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("smallest", [PAGE_BYTES, 1 << 20])
def test_pieces_of_any_size_are_written_in_order(
    tmp_path: Path, seed: int, smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_file, "SMALLEST_DIRECT_BYTES", smallest)
    rng = random.Random(seed)
    with BufferPool().taken(40_000) as memory:
        memory[:] = np.frombuffer(rng.randbytes(len(memory)), np.uint8)
        pieces = random_pieces(rng, memory)
        assert written(tmp_path / "f", pieces, 2 * PAGE_BYTES) == b"".join(pieces)


@pytest.mark.parametrize("most", [1, 1000, PAGE_BYTES])
def test_writes_that_take_less_are_gone_on_with(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(direct_file.os, "write", lambda file, data: write(file, data[: max(most, len(data) // 2)]))
    data = random.Random(1).randbytes(5 * PAGE_BYTES + 17)
    assert written(tmp_path / "f", [memoryview(data)] * 3, 2 * PAGE_BYTES) == data * 3


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        written(tmp_path / "f", [], PAGE_BYTES)
    assert (tmp_path / "f").read_bytes() == b"mine"


@pytest.mark.parametrize(("offset", "size"), [(0, 40_000), (4096, 30_001), (4096, 99_999), (100, 5000), (36_864, 3136)])
def test_a_read_past_the_page_cache_gives_the_same_bytes(
    tmp_path: Path, offset: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "SMALLEST_DIRECT_READ_BYTES", PAGE_BYTES)
    data = random.Random(2).randbytes(40_000)
    (tmp_path / "f").write_bytes(data)
    with BufferPool().taken(size) as target, LocalStore(tmp_path).open("f") as reader:
        got = reader.read_into(offset, target.data)
        assert target[:got].tobytes() == data[offset : offset + size]
