"""Embeddings of plain torch that are saved while training changes them: a commit is the state of its step boundary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks
from test_background_saves import PacedStore
from torch import optim
from torch_world import NUM_ROWS, Job, Make, Model

from ett.checkpoint.capture import row_capture
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore

FAMILIES: dict[str, tuple[Make, bool]] = {
    "SGD": (lambda p: optim.SGD(p, lr=0.1), False),
    "SGD sparse": (lambda p: optim.SGD(p, lr=0.1), True),
    "Adagrad fused": (lambda p: optim.Adagrad(p, lr=0.1, fused=True), False),
    "SparseAdam": (optim.SparseAdam, True),
    "Adam": (optim.Adam, False),
    "LBFGS": (lambda p: optim.LBFGS(p, max_iter=2, history_size=2), False),
}


def opened(folder: Path, family: str, store: LocalStore | None = None, **config: object) -> Job:
    make, is_sparse = FAMILIES[family]
    ranks = ThreadRanks(0, 1, Meeting(1))
    return Job(folder, make, ranks, model=Model(is_sparse=is_sparse), store=store, **config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "policy"),
    [
        *((name, "incremental") for name in ("SGD", "SGD sparse", "Adagrad fused", "SparseAdam", "Adam", "LBFGS")),
        ("SparseAdam", "adaptive"),
        ("Adam", "full"),
    ],
)
def test_a_commit_has_the_rows_of_its_boundary(
    tmp_path: Path, family: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_capture, "_SWEPT_BYTES", 1 << 14)
    store = PacedStore(tmp_path)
    job = opened(tmp_path, family, store, policy=policy, background=True, interval="1 steps").restore()
    expected = {}
    for number in range(4):
        job.train(2)
        expected[job.next_step] = job.values()
        store.go()
        job.checkpointer.step(job.next_step, job.next_step)
        store.hold()
        job.train(1)  # before a file is begun, and while files are written
        store.let(1)
        job.train(1 + number % 2)
    store.go()
    job.checkpointer.close()
    commits = commits_of(tmp_path)
    assert [commit.step for commit in commits] == list(expected)
    assert sum(commit.stats["guard_rows"] for commit in commits) > 0, "no row changed while it was wanted"
    for step, values in expected.items():
        assert opened(tmp_path, family, allow_foreign=True).restore(str(step)).values() == values, step


def test_a_write_that_nobody_told_of_fails_the_save_that_it_falls_into(tmp_path: Path) -> None:
    store = PacedStore(tmp_path)
    job = opened(tmp_path, "SGD", store, background=True, interval="1 steps").restore().train(1)
    store.hold()
    job.checkpointer.step(1, 1)
    with torch.no_grad():
        job.items.weight[NUM_ROWS - 1] = 1.0
    job.train(1)
    store.go()
    job.checkpointer.step(2, 2)
    job.checkpointer.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [2]
    assert isinstance(job.run, RecordingRun) and "ckpt_abandoned" in job.run.kinds()
    assert opened(tmp_path, "SGD").restore().values() == job.values()


def commits_of(folder: Path) -> list[Commit]:
    return [commit for commit in CommitLog(LocalStore(folder)).read_all()[0].values() if not commit.is_fresh]
