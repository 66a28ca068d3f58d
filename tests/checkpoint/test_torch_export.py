"""`--into torch`: files that torch opens without running any code, with every bit of a commit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_world import Meeting, Rank, ThreadRanks, bits

from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.torch_export import STATE, export_torch
from ett.errors import ConfigError, CorruptState


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    rank = Rank(tmp_path / "job", ThreadRanks(0, 1, Meeting(1)))
    rank.fill(3)
    rank.checkpointer.save(1, 10)
    return rank


def test_torch_reads_every_bit_with_weights_only(rank: Rank, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "job")
    made = export_torch(store, CommitLog(store).read(2), tmp_path / "out")
    loaded = {
        name: value
        for path in (tmp_path / "out").iterdir()
        for name, value in torch.load(path, weights_only=True).items()
    }
    state = json.loads(loaded.pop(STATE))
    assert state.keys() == {"model", "optimizer", "extra", "loader"}
    assert loaded.keys() == made.files.keys()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*made.files.values()}
    for shard in rank.model.shards():
        order = torch.argsort(loaded[f"{shard.name}.ids"])
        assert torch.equal(loaded[f"{shard.name}.ids"][order], shard.rows.ids)
        assert bits(loaded[shard.name][order]) == bits(shard.rows.weights)
        for name, values in shard.rows.states.items():
            assert bits(loaded[f"{shard.name}.{name}"][order]) == bits(values)
    for name, parameter in rank.model.named_parameters():
        assert bits(loaded[f"model.{name}"]) == bits(parameter) and loaded[f"model.{name}"].dtype == parameter.dtype


def test_damage_leaves_nothing_behind(rank: Rank, tmp_path: Path) -> None:
    segment = next((tmp_path / "job").rglob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[4100] ^= 1
    segment.write_bytes(data)
    store = LocalStore(tmp_path / "job")
    with pytest.raises(CorruptState, match="block 0"):
        export_torch(store, CommitLog(store).read(2), tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.name not in ("job", "out")]
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_holds_something_is_left_alone(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    store = LocalStore(tmp_path / "job")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_torch(store, CommitLog(store).read(2), tmp_path / "out")
