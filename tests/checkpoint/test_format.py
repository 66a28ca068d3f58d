"""docs/checkpoint.md says enough to read a checkpoint: a reader written from it alone finds every bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import oracle, raw, saved_world
from plain_reader import read_commit

from ett.checkpoint import table_segments


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "block_bytes"), [(2, 2 << 20), (1, 512)])
def test_a_reader_written_from_the_page_alone_reads_every_bit(
    tmp_path: Path, world_size: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_segments, "BLOCK_BYTES", block_bytes)
    saved_world(tmp_path, world_size, [6])
    rows, tensors = read_commit(tmp_path, 2)
    expected = oracle(6)
    assert rows == expected.rows()
    model = expected.model.state_dict()
    assert {name for name in tensors if name.startswith("model.")} == {f"model.{name}" for name in model}
    for name, value in model.items():
        dtype, shape, data = tensors[f"model.{name}"]
        assert (f"torch.{dtype}".encode() + data, shape) == (raw(value), list(value.shape))
