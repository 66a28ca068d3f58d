"""Weights in fewer bits: only on request, said in the commit, and lost once, however often they are restored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plain_reader
import pytest
import torch
from checkpoint_world import RecordingRun
from numpy.typing import NDArray
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer, commit, commit_log
from ett.checkpoint.commit import Commit, commit_name, parse_commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.compaction import compact, plan_compaction
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.table import copy_of_rows
from ett.checkpoint.verify import verify_commit
from ett.cli import run
from ett.errors import ConfigError, CorruptState
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad

NUM_ROWS, DIM = 600, 16
Rows = tuple[NDArray[np.float32], NDArray[np.float32]]  # weights [N, DIM], the optimizer's sums


class Job:
    """One life of a job with a table that says what changes."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.model = nn.Module()
        init = RowInit("users", seed=1, dim=DIM, scale=0.1)
        self.model.users = EmbeddingShard("users", init, Adagrad(1e-8), dim=DIM, num_rows=0, rank=0, world_size=1)
        config = {"policy": "incremental", "max_chain": 8, **config}
        self.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(folder), **config), model=self.model, run=RecordingRun()
        )
        self.checkpointer.restore()

    def train(self, seed: int, num_rows: int = NUM_ROWS) -> None:
        ids = np.arange(NUM_ROWS)[:: NUM_ROWS // num_rows]
        self.model.users.update(ids, torch.randn(len(ids), DIM, generator=torch.Generator().manual_seed(seed)), 0.1)

    def save(self, step: int) -> Commit:
        made = self.checkpointer.save(step, step)
        self.checkpointer.close()
        return made

    def rows(self) -> Rows:
        found = copy_of_rows(self.model.users)
        return found.weights.numpy(), next(iter(found.states.values())).numpy()

    def everything_changes(self) -> None:
        self.checkpointer.touched("users", None)


def largest_error(before: Rows, after: Rows) -> float:
    """Return the largest error in steps of 8 bits of its row."""
    steps = (before[0].max(axis=1) - before[0].min(axis=1)) / 255
    return float((np.abs(after[0] - before[0]).max(axis=1) / steps).max())


def saved(folder: Path, **config: Any) -> Rows:
    """Save a base and a part of what is changed after it; return what the job then held."""
    job = Job(folder, **config)
    job.train(1)
    job.checkpointer.save(1, 1)
    job.train(2, num_rows=60)
    job.save(2)
    return job.rows()


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_lost_is_lost_once_however_often_it_is_restored(tmp_path: Path, bits: int) -> None:
    live = saved(tmp_path, quantise=bits)
    first = Job(tmp_path, quantise=bits)
    found = first.rows()
    assert not np.array_equal(found[0], live[0])
    if bits == 8:
        assert largest_error(live, found) <= 0.501
    for step in (3, 4):  # all rows are written again, from what came back
        job = Job(tmp_path, quantise=bits)
        job.everything_changes()
        job.save(step)
        again = Job(tmp_path, quantise=bits).rows()
        assert again[0].tobytes() == found[0].tobytes()


def test_a_save_beside_training_is_quantised_too(tmp_path: Path) -> None:
    job = Job(tmp_path, quantise=8, background=True, interval="1 steps")
    job.train(1)
    live = job.rows()
    assert job.checkpointer.step(1, 1) is None
    job.train(2)
    job.checkpointer.close()
    assert newest(tmp_path).tables[0].weight_bits == [8]
    assert largest_error(live, Job(tmp_path).rows()) <= 0.501


def test_optimizer_states_are_exact(tmp_path: Path) -> None:
    live = saved(tmp_path, quantise=4)
    assert Job(tmp_path).rows()[1].tobytes() == live[1].tobytes()


def test_nothing_is_lost_by_default(tmp_path: Path) -> None:
    live = saved(tmp_path)
    assert Job(tmp_path).rows()[0].tobytes() == live[0].tobytes()
    assert "quantised.v1" not in newest(tmp_path).features


def newest(folder: Path) -> Commit:
    log = CommitLog(LocalStore(folder))
    return log.read(max(seq for seq in log.seqs() if log.read(seq).type != "epoch_open"))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "row_bytes"), [(8, 8 + DIM), (4, 8 + DIM // 2)])
def test_files_are_smaller(tmp_path: Path, bits: int, row_bytes: int) -> None:
    """By what the rows of both files are, but for the zeros that align a section of each."""
    saved(tmp_path / "exact")
    saved(tmp_path / "small", quantise=bits)
    exact, small = (newest(tmp_path / name).tables[0].num_bytes for name in ("exact", "small"))
    assert abs((exact - small) - (NUM_ROWS + 60) * (4 * DIM - row_bytes)) <= 2 * 4096


def test_an_older_reader_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, quantise=8)
    name = commit_name(newest(tmp_path).seq)
    data = (tmp_path / name).read_bytes()
    assert json.loads(data)["min_reader"] == "1.4"
    monkeypatch.setattr(commit, "MINOR", 3)
    monkeypatch.setattr(commit, "KNOWN_FEATURES", tuple(f for f in commit.KNOWN_FEATURES if f != "quantised.v1"))
    with pytest.raises(ConfigError, match=r"with quantised\.v1") as raised:
        parse_commit(data, name)
    assert raised.value.do == "use the ett that wrote it, or a newer one"


def test_show_says_what_is_quantised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "small", quantise=8)
    saved(tmp_path / "exact")
    assert run(["checkpoint", "show", str(tmp_path / "small")]) == 0
    assert "quantised   weights of users in 8 bits; digests are of what comes back" in capsys.readouterr().out
    assert run(["checkpoint", "show", str(tmp_path / "exact")]) == 0
    assert "quantised" not in capsys.readouterr().out
    assert run(["checkpoint", "show", str(tmp_path / "small"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["tables"][0]["weight_bits"] == [8]


def test_the_digest_is_of_the_rows_that_come_back(tmp_path: Path) -> None:
    job = Job(tmp_path, quantise=8)
    job.train(1)
    quantised = job.save(1)
    exact = Job(tmp_path, policy="full").save(2)
    assert exact.tables[0].weight_bits == []
    assert quantised.tables[0].digest == exact.tables[0].digest


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_fails_the_save_and_is_named(tmp_path: Path, bad: float) -> None:
    job = Job(tmp_path, quantise=8)
    job.train(1)
    job.checkpointer.save(1, 1)
    poison = torch.zeros(1, DIM)
    poison[0, 3] = bad
    job.model.users.update(np.array([7]), poison, 0.1)
    with pytest.raises(CorruptState, match="table users: the weights of id 7 are not all finite"):
        job.checkpointer.save(2, 2)
    job.checkpointer.close()
    assert newest(tmp_path).step == 1
    assert sorted(LocalStore(tmp_path).list("d")) == sorted(f.stored.path for f in newest(tmp_path).tables[0].files)


def test_exact_saves_take_any_bits(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.model.users.update(np.array([7]), torch.full((1, DIM), float("nan")), 0.1)
    job.save(1)
    assert Job(tmp_path).rows()[0].tobytes() == job.rows()[0].tobytes()


@pytest.mark.parametrize("second", [0, 4])
def test_a_chain_may_have_files_of_several_kinds(tmp_path: Path, second: int) -> None:
    job = Job(tmp_path, quantise=8)
    job.train(1)
    job.save(1)
    before = Job(tmp_path)
    whole = before.rows()[0].copy()
    after = Job(tmp_path, quantise=second)
    after.train(2, num_rows=60)
    made = after.save(2)
    assert made.tables[0].weight_bits == sorted({8, second} - {0})
    found, changed = Job(tmp_path).rows()[0], np.zeros(NUM_ROWS, np.bool_)
    changed[::10] = True
    assert found[~changed].tobytes() == whole[~changed].tobytes()
    assert second or found.tobytes() == after.rows()[0].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("second", "bits"), [(8, [8]), (0, [])])
def test_a_rewrite_holds_what_came_back(tmp_path: Path, second: int, bits: list[int]) -> None:
    """Bit for bit, in as few bits where all files have as many, else as it is."""
    job = Job(tmp_path, quantise=8)
    job.train(1)
    job.save(1)
    job = Job(tmp_path, quantise=second)
    job.train(2, num_rows=60)
    job.save(2)
    before = Job(tmp_path).rows()
    store = LocalStore(tmp_path)
    made = compact(store, plan_compaction(store))
    assert made.tables[0].weight_bits == bits
    assert Job(tmp_path).rows()[0].tobytes() == before[0].tobytes()


@pytest.mark.slow
def test_another_reader_finds_the_same(tmp_path: Path) -> None:
    """Odd dimensions too: `plain_reader` knows the page of the format, and no code of ett's."""
    for bits in (8, 4):
        folder = tmp_path / str(bits)
        saved(folder, quantise=bits)
        made = newest(folder)
        table = made.tables[0]
        rows, _ = plain_reader.read_commit(folder, made.seq)
        weights, _ = Job(folder).rows()
        assert len(rows) == table.num_rows == NUM_ROWS
        for row_id in range(NUM_ROWS):
            assert rows["users", row_id][: 4 * DIM] == weights[row_id].tobytes()


def test_damage_is_found_in_every_block(tmp_path: Path) -> None:
    saved(tmp_path, quantise=8)
    made = newest(tmp_path)
    for file in made.tables[0].files:
        path = tmp_path / file.stored.path
        data = bytearray(path.read_bytes())
        data[8192 + 100] ^= 1  # of the weights: ids are in the first two pages
        path.write_bytes(data)
        with pytest.raises(CorruptState, match="section weight"):
            verify_commit(LocalStore(tmp_path), replace(made), "load")
        data[8192 + 100] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("value", [2, 16, "8"])
def test_other_numbers_of_bits_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.quantise"):
        CheckpointConfig(quantise=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("default", "own", "bits"), [(0, 8, [8]), (8, 0, []), (8, 4, [4])])
def test_a_table_may_choose_its_own_bits(tmp_path: Path, default: int, own: int, bits: list[int]) -> None:
    live = saved(tmp_path, quantise=default, quantise_tables={"users": own})
    found = Job(tmp_path).rows()
    assert newest(tmp_path).tables[0].weight_bits == bits
    assert (found[0].tobytes() == live[0].tobytes()) == (own == 0)
    assert found[1].tobytes() == live[1].tobytes()


def test_bits_of_a_table_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantise_tables has 'user'") as refused:
        Job(tmp_path, quantise_tables={"user": 8})
    assert "did you mean 'users'" in refused.value.expected
    with pytest.raises(ConfigError, match=r"checkpoint\.quantise_tables\.users is 3"):
        CheckpointConfig(quantise_tables={"users": 3})  # type: ignore[dict-item]


def test_the_format_of_a_folder_says_the_version_that_knows(tmp_path: Path) -> None:
    saved(tmp_path)
    assert json.loads((tmp_path / commit_log.FORMAT_NAME).read_bytes())["minor"] == 4
