"""Save then restore is the identity: bytes, dtypes, optimizer, reader, for any new number of ranks."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from checkpoint_world import (
    DictShard,
    Meeting,
    Rank,
    RecordingRun,
    ThreadRanks,
    holds,
    raise_first,
    reseed_everything,
    restored_world,
    run_ranks,
    saved_world,
)
from torch import nn

from ett.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    StateSpec,
    TableRows,
    segment_rows,
    table_segments,
    table_writer,
)
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import ConfigError, RestoreFailed


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_restore_has_every_bit_of_the_save(tmp_path: Path, before: int, after: int) -> None:
    saved_world(tmp_path, before, [1, 2])
    world = restored_world(tmp_path, after)
    assert holds(world, 2)
    assert {(position.step, position.cursor) for _, position in world} == {(2, 20)}


@pytest.mark.slow
def test_resharding_there_and_back_keeps_the_digest(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [5])
    for world_size in (2, 3, 1):
        world = restored_world(tmp_path, world_size)
        assert holds(world, 5)


@pytest.mark.slow
@pytest.mark.parametrize("segment_bytes", [1, 1 << 30])
@pytest.mark.parametrize("piece_bytes", [1, 1 << 30])
def test_tables_of_several_segments_and_blocks_are_whole(
    tmp_path: Path, segment_bytes: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_segments, "BLOCK_BYTES", 512)
    monkeypatch.setattr(table_segments, "SEGMENT_BYTES", segment_bytes)
    monkeypatch.setattr(table_writer, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(segment_rows, "READ_BYTES", piece_bytes)
    monkeypatch.setattr(segment_rows, "ROWS_OF_IDS", piece_bytes)
    saved_world(tmp_path, 1, [3])
    assert len(list(tmp_path.glob("d/*/*/t0000.*"))) == (2 if segment_bytes == 1 else 1)
    for world_size in (2, 1):
        assert holds(restored_world(tmp_path, world_size), 3)


def test_a_save_asks_a_table_for_a_piece_of_its_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a table is, nobody ever holds more of it than the segments that are being written."""
    monkeypatch.setattr(table_segments, "BLOCK_BYTES", 512)
    monkeypatch.setattr(table_writer, "PIECE_BYTES", 1)
    asked: list[int] = []
    gather = DictShard.gather

    def record(shard: DictShard, ids: torch.Tensor, out: TableRows) -> None:
        asked.append(len(ids))
        gather(shard, ids, out)

    monkeypatch.setattr(DictShard, "gather", record)
    saved_world(tmp_path, 1, [3])
    assert sum(asked) == 2 * 502
    assert max(asked) == 256


def test_a_fresh_folder_restores_nothing(tmp_path: Path) -> None:
    ((_, position),) = restored_world(tmp_path, 1)
    assert position is None


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [0, 1])
def test_tables_with_hardly_a_row_are_restored(tmp_path: Path, num_rows: int) -> None:
    """A row less than ranks: some ranks have nothing to write, a table may have nothing at all."""

    def save(ranks: ThreadRanks) -> None:
        rank = Rank(tmp_path, ranks)
        rank.checkpointer.restore()
        keep(rank, num_rows)
        rank.checkpointer.save(1, 10)

    raise_first(run_ranks(3, save))
    for world_size in (1, 2):
        world = restored_world(tmp_path, world_size)
        assert sum(len(rank.rows()) for rank, _ in world) == 2 * num_rows


def keep(rank: Rank, num_rows: int) -> None:
    for shard in rank.model.shards():
        ids = torch.arange(num_rows)
        mine = ids[shard.owned(ids)]
        states = {s.name: torch.ones((len(mine), s.width), dtype=getattr(torch, s.dtype)) for s in shard.states}
        weights = torch.ones((len(mine), shard.dim), dtype=getattr(torch, shard.weight_dtype))
        shard.rows = TableRows(ids=mine, weights=weights, states=states)


@pytest.mark.slow
def test_changing_the_state_after_a_save_does_not_change_the_commit(tmp_path: Path) -> None:
    def work(ranks: ThreadRanks) -> None:
        rank = Rank(tmp_path, ranks, keep_last=5)
        rank.checkpointer.restore()
        for step in range(1, 6):
            rank.fill(step)
            rank.checkpointer.save(step, step * 10)
            rank.fill(99)

    raise_first(run_ranks(2, work))
    for step in (3, 5, 1):
        assert holds(restored_world(tmp_path, 1, resume=str(step), keep_last=5), step)


@pytest.mark.slow
def test_the_digest_of_a_commit_does_not_depend_on_the_world_size(tmp_path: Path) -> None:
    digests = set()
    for world_size in (1, 2, 3):
        saved_world(tmp_path / str(world_size), world_size, [4])
        known, _ = CommitLog(LocalStore(tmp_path / str(world_size))).read_all()
        commit = known[max(known)]
        digests.add((commit.digest, *(table.digest for table in commit.tables)))
    assert len(digests) == 1


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    """Threads share the generators, so one rank suffices; each rank's state is in its own fragment."""
    reseed_everything(3)
    random.gauss(0, 1)
    np.random.standard_normal()
    saved_world(tmp_path, 1, [1])
    expected = (torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1), random.random())
    reseed_everything(4)
    restored_world(tmp_path, 1)
    found = (torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1), random.random())
    assert found == expected


def test_the_run_hears_what_happened(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)))
    points: list[str] = []
    rank.run.hook = lambda point, step: points.append(point)
    rank.checkpointer.restore()
    rank.fill(1)
    commit = rank.checkpointer.save(1, 10)
    assert rank.run.kinds() == ["span", "span", "ckpt_begin", "committed", "ckpt_detail"]
    committed = rank.run.said[-2][1]
    assert (committed["step"], committed["cursor"], committed["tier"]) == (1, 10, "local")
    assert (committed["ckpt_id"], committed["digest"]) == (commit.ckpt_uuid, commit.digest)
    on_disk = sum(path.stat().st_size for top in ("d", "dense", "m") for path in (tmp_path / top).rglob("*.*"))
    assert committed["num_bytes"] == on_disk
    assert points == ["ckpt_before_write", "ckpt_after_shard_write", "ckpt_before_commit", "ckpt_after_commit"]
    ((again, _),) = restored_world(tmp_path, 1)
    kind, restored = again.run.said[-1]
    assert (kind, restored["step"], restored["cursor"], restored["ckpt_id"]) == ("restored", 1, 10, commit.ckpt_uuid)


@pytest.mark.parametrize(
    ("call", "budget_s", "is_over"), [("step", 1e-9, True), ("step", 1e9, False), ("save", 1e-9, False)]
)
def test_a_slow_save_is_said_to_be_over_budget(
    tmp_path: Path, call: str, budget_s: float, is_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless the program asked to wait for it: of its last save it can change nothing."""
    config = {"interval": "1 steps", "background": False, "stall_budget_s": budget_s}
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), **config)
    rank.checkpointer.restore()
    with caplog.at_level("WARNING", "ett.checkpoint"):
        getattr(rank.checkpointer, call)(1, 10)
    kind, told = rank.run.said[-1]
    assert (kind, told["over_budget"], "held training" in caplog.text) == ("ckpt_detail", is_over, is_over)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["dim", "dtype", "state", "missing table", "dense shape", "no optimizer", "groups"])
def test_a_model_of_another_shape_is_refused_with_the_difference(tmp_path: Path, change: str) -> None:
    saved_world(tmp_path, 1, [1])
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)))
    model, optimizer = rank.model, rank.optimizer
    one, word = StateSpec(name="sum", dtype="float32", width=1), "bags/items"
    if change == "dim":
        model.items = DictShard("bags/items", 4, (one,), (0, 1), dtype="bfloat16")
    elif change == "dtype":
        model.items = DictShard("bags/items", 3, (one,), (0, 1), dtype="float16")
    elif change == "state":
        model.items = DictShard("bags/items", 3, (), (0, 1), dtype="bfloat16")
    elif change == "missing table":
        del model.items
    elif change == "dense shape":
        model.linear, word = nn.Linear(5, 4), r"linear\.bias: torch.float32 \[3\]"
    elif change == "no optimizer":
        optimizer, word = None, "optimizer"
    else:
        optimizer, word = torch.optim.Adam(list(model.linear.parameters())), "optimizer"
    checkpointer = Checkpointer(
        CheckpointConfig(uri=str(tmp_path)), model=model, optimizer=optimizer, loader=rank.loader, run=rank.run
    )
    with pytest.raises(RestoreFailed, match=word):
        checkpointer.restore()


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    model = nn.ModuleList([DictShard("same", 2, (), (0, 1)), DictShard("same", 2, (), (0, 1))])
    with pytest.raises(ConfigError, match="same"):
        Checkpointer(CheckpointConfig(uri=str(tmp_path)), model=model, run=RecordingRun())


def test_a_state_that_json_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)))
    rank.loader.state = {"open": {"file": object()}}
    with pytest.raises(ConfigError, match=r"loader\.open\.file is a object"):
        rank.checkpointer.save(1, 1)


def test_without_a_uri_checkpoints_lie_in_the_jobs_folder(tmp_path: Path) -> None:
    checkpointer = Checkpointer(CheckpointConfig(), model=nn.Linear(2, 2), run=RecordingRun(tmp_path))
    checkpointer.save(1, 1)
    assert (tmp_path / "checkpoints" / "FORMAT.json").exists()
    with pytest.raises(ConfigError, match=r"checkpoint\.uri"):
        Checkpointer(CheckpointConfig(), model=nn.Linear(2, 2), run=RecordingRun())


@pytest.mark.slow
@pytest.mark.parametrize("saved_by", [1, 2, 3, 4, 8])
def test_any_number_of_ranks_restores_what_any_other_saved(tmp_path: Path, saved_by: int) -> None:
    saved_world(tmp_path, saved_by, [5])
    for world_size in (1, 2, 3, 4, 8):
        assert holds(restored_world(tmp_path, world_size), 5)


class CountingOptimizer:
    """No torch.optim.Optimizer: its state is what it likes."""

    def __init__(self) -> None:
        self.counts = {"steps": 0}

    def state_dict(self) -> dict[str, int]:
        return dict(self.counts)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.counts = dict(state)


def test_an_optimizer_of_any_kind_is_restored(tmp_path: Path) -> None:
    def opened() -> tuple[CountingOptimizer, Checkpointer]:
        optimizer, config = CountingOptimizer(), CheckpointConfig(uri=str(tmp_path))
        return optimizer, Checkpointer(config, model=nn.Linear(2, 2), optimizer=optimizer, run=RecordingRun())

    optimizer, checkpointer = opened()
    optimizer.counts["steps"] = 7
    checkpointer.save(1, 10)
    found, restored = opened()
    restored.restore()
    assert found.counts == {"steps": 7}


class TwoAtOnce(LocalStore):
    """Ends no segment before another one of the same rank is being written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.both = threading.Barrier(2, timeout=60)

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        with super().create_stream(name) as file:
            if name.endswith(".seg"):
                self.both.wait()
            yield file


def test_a_rank_writes_several_segments_at_once(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), store=TwoAtOnce(tmp_path))  # of its two tables one each
    rank.fill(1)
    rank.checkpointer.save(1, 10)
    assert holds(restored_world(tmp_path, 1), 1)
