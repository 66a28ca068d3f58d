"""What saves are where a recipe says nothing: what changed, beside training, and in a short job no worse than all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_world import Meeting, Model, RecordingRun, ThreadRanks
from test_background_saves import commits_of
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.table import copy_of_rows
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad

NUM_ROWS, DIM = 20_000, 16


class Job:
    def __init__(self, folder: Path, **config: Any) -> None:
        self.model = nn.Module()
        init = RowInit("users", seed=1, dim=DIM, scale=0.1)
        self.users = EmbeddingShard("users", init, Adagrad(1e-8), dim=DIM, num_rows=0, rank=0, world_size=1)
        self.model.users = self.users
        self.run = RecordingRun()
        self.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(folder), interval="1 steps", **config), model=self.model, run=self.run
        )
        self.start = self.checkpointer.restore()

    def train(self, step: int) -> None:
        """Change every row in the first step, and a tenth of them in each later one."""
        ids = np.arange(NUM_ROWS)[:: 1 if step == 1 else 10]
        self.users.update(ids, torch.randn(len(ids), DIM, generator=torch.Generator().manual_seed(step)), 0.1)
        self.checkpointer.step(step, step)

    def rows(self) -> tuple[bytes, ...]:
        found = copy_of_rows(self.users)
        columns = (found.ids, found.weights, *found.states.values())
        return tuple(column.numpy().tobytes() for column in columns)


def lived(folder: Path, num_saves: int, **config: Any) -> tuple[Job, int]:
    """Return a job that has ended, and the bytes that it saved."""
    job = Job(folder, **config)
    for step in range(1, num_saves + 1):
        job.train(step)
        assert job.checkpointer.has_settled(60)
    job.checkpointer.close()
    saved = [f for kind, f in job.run.said if kind == "ckpt_detail"]
    assert len(saved) == num_saves
    return job, sum(fields[f"{kind}_bytes"] for fields in saved for kind in ("base", "hot", "cold"))


@pytest.mark.slow
@pytest.mark.parametrize("num_saves", [1, 3])
def test_a_short_job_writes_no_more_than_one_that_saves_all_each_time(tmp_path: Path, num_saves: int) -> None:
    job, num_bytes = lived(tmp_path / "default", num_saves)
    plain, num_plain = lived(tmp_path / "plain", num_saves, policy="full", background=False)
    assert num_bytes <= num_plain
    assert num_saves == 1 or num_bytes < 0.6 * num_plain
    assert job.rows() == plain.rows() == Job(tmp_path / "default").rows()


def test_the_first_save_is_a_base_and_the_next_are_what_changed(tmp_path: Path) -> None:
    lived(tmp_path, 3)
    commits = commits_of(tmp_path)
    assert [(commit.policy, commit.type) for commit in commits] == [
        ("adaptive", "base"),
        ("adaptive", "delta"),
        ("adaptive", "delta"),
    ]


def test_a_restarted_job_goes_on_with_what_changed(tmp_path: Path) -> None:
    lived(tmp_path, 3, keep_last=1)
    again = Job(tmp_path)
    assert again.start is not None and again.start.step == 3
    again.train(4)
    again.checkpointer.close()
    assert commits_of(tmp_path)[-1].type == "delta"
    assert Job(tmp_path).rows() == again.rows()


def test_tables_that_do_not_say_what_changes_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(0, 1)
    model.fill(1, num_rows=20)
    config = CheckpointConfig(uri=str(tmp_path), interval="1 steps")
    checkpointer = Checkpointer(config, model=model, run=RecordingRun(), ranks=ThreadRanks(0, 1, Meeting(1)))
    with caplog.at_level(logging.INFO, "ett.checkpoint"):
        for step in (1, 2):
            checkpointer.step(step, step)
            assert checkpointer.has_settled(60)
        checkpointer.close()
    told = [record.getMessage() for record in caplog.records if "do not say what changes" in record.getMessage()]
    assert len(told) == 1 and told[0].endswith(": bags/items, users")
    assert [commit.type for commit in commits_of(tmp_path)] == ["base", "base"]
