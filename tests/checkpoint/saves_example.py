"""The saves of a job that fails twice: `python -P tests/checkpoint/saves_example.py docs/saves-example`.

Files, rows and times of saving are real; an hour of training between two saves passes at once. What is recorded of
them is all that is written: docs/img/saves.svg shows it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks
from torch import nn

import ett.checkpoint.dense_writer  # noqa: F401 - as a job's has, long before its first save
from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.event_line import encode_line
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad

NUM_ROWS, DIM, LOOKUPS = 40_000, 16, 20_000  # lookups of an interval, whose ids are as skewed as 1 / rank
LIVES, SAVES_A_LIFE, INTERVAL_S = 3, 24, 3600
BEGAN_S = 1_790_000_000


class QuickClock:
    """The system's, but for the time that is let pass."""

    def __init__(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.passed_s = 0

    def mono_ns(self) -> int:
        return time.monotonic_ns() - self.began_ns + self.passed_s * 10**9

    def wall_ns(self) -> int:
        return BEGAN_S * 10**9 + self.mono_ns()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        init = RowInit("items", seed=1, dim=DIM, scale=0.1)
        self.items = EmbeddingShard("items", init, Adagrad(1e-8), dim=DIM, num_rows=0, rank=0, world_size=1)
        self.dense = nn.Linear(64, 64)


class JobLog:
    """A job's event log, in which only starts, failures and saves stand."""

    def __init__(self, folder: Path, clock: QuickClock) -> None:
        self.folder, self.clock, self.seqs = folder, clock, dict[str, int]()

    def write(self, src: str, att: int, ev: str, **fields: Any) -> None:
        seq = self.seqs.setdefault(src + str(att), 0)
        self.seqs[src + str(att)] += 1
        own = {"v": 1, "job": "saves", "att": att, "gen": 0, "src": src, "host": "host0", "boot": "0" * 32, "pid": 7}
        own |= {"rank": 0} if src == "r0" else {}
        now = {"seq": seq, "wall_ns": self.clock.wall_ns(), "mono_ns": self.clock.mono_ns(), "ev": ev}
        path = self.folder / ("0" if src == "sup" else str(att)) / f"{src}-host0-7-00000000.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(encode_line({**fields, **own, **now}))


def live(job_dir: Path, clock: QuickClock, log: JobLog, attempt: int) -> None:
    """Restore, train and save until the attempt fails."""
    torch.manual_seed(attempt)
    log.write("sup", attempt, "attempt_started")
    model, run = Model(), RecordingRun(job_dir)
    config = CheckpointConfig(policy="adaptive", background=False, interval="2 steps")
    ranks = ThreadRanks(0, 1, Meeting(1))
    checkpointer = Checkpointer(config, model=model, run=run, ranks=ranks, clock=clock)
    restored = checkpointer.restore()
    step = restored.step if restored else 0
    rng = np.random.default_rng(attempt)
    weights = 1 / np.arange(1, NUM_ROWS + 1)
    log.write("r0", attempt, "step", step=step + 1, samples=1, b_mono=0, e_mono=1)
    for _ in range(SAVES_A_LIFE):
        step += 2
        clock.passed_s += INTERVAL_S
        ids = np.unique(rng.choice(NUM_ROWS, LOOKUPS, p=weights / weights.sum()))
        model.items.update(ids, torch.randn(len(ids), DIM), 0.1)
        for at in (step - 1, step):
            checkpointer.step(at, at * LOOKUPS // 2)
        log.write("r0", attempt, "ckpt_detail", **next(told for ev, told in reversed(run.said) if ev == "ckpt_detail"))
    checkpointer.close()
    log.write("sup", attempt, "attempt_ended", reason="failed")


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    clock = QuickClock()
    with tempfile.TemporaryDirectory() as job_dir:
        log = JobLog(Path(job_dir) / "events", clock)
        for attempt in range(1, LIVES + 1):
            live(Path(job_dir), clock, log, attempt)
        shutil.copytree(Path(job_dir) / "events", folder / "events")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
