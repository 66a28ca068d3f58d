"""Whether a checkpoint that is written while training goes on holds every bit of its step boundary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.table import TableRows
from ett.errors import ThresholdMissed
from ett.trainer.bench.policy_job import PolicyJob
from ett.trainer.bench.policy_savers import WAIT_S, PolicyOfSaves, PolicySaver

_STEPS_BETWEEN, _STEPS_BEFORE_WRITING = 4, 3


class _HeldStore(LocalStore):
    """No file is begun until it is let."""

    def __init__(self, root: Path, may_write: threading.Event) -> None:
        super().__init__(root)
        self._may_write = may_write

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        if not self._may_write.wait(WAIT_S):
            raise ThresholdMissed(f"{name} was not begun within {WAIT_S:g} s", expected="training that goes on")
        with super().create_stream(name) as file:
            yield file


def check_commits(job: PolicyJob, twin: PolicyJob, folder: Path, num_saves: int) -> dict[str, Any]:
    """Train, save beside it, and compare what is restored with copies made at the boundaries; return what was captured.

    Rows are written only when some steps after the boundary have been trained, so what was not kept is lost.
    Raises: ThresholdMissed: another bit is restored, or no row had to be kept.
    """
    may_write = threading.Event()
    may_write.set()
    policy = PolicyOfSaves(name="check", policy="adaptive", max_chain=num_saves, background=True)
    saver = PolicySaver(job, policy, lambda root: _HeldStore(root, may_write), keep_last=num_saves + 1)
    saver.begin(folder)
    job.begin(num_saves * (_STEPS_BETWEEN + _STEPS_BEFORE_WRITING))
    expected: dict[int, tuple[list[TableRows], dict[str, Tensor]]] = {}
    try:
        for number in range(1, num_saves + 1):
            job.train(_STEPS_BETWEEN)
            step = number * _STEPS_BETWEEN
            expected[step] = job.copy()
            may_write.clear()
            saver.trigger(step)
            job.train(_STEPS_BEFORE_WRITING)
            may_write.set()
            saver.settle()
    finally:
        may_write.set()
        job.end()
        facts = saver.end()
    kept = sum(each.prefetch_rows or 0 for each in facts)
    if len(facts) != num_saves or not kept:
        raise ThresholdMissed(f"{len(facts)} saves kept {kept} rows", expected=f"{num_saves} saves, and rows to keep")
    for step, (rows, dense) in expected.items():
        saver.restore(twin, step)
        _compare(step, rows, dense, twin)
    return {
        "saves": num_saves,
        "rows_kept": kept,
        "rows_compared": sum(len(r.ids) for rs, _ in expected.values() for r in rs),
    }


def _compare(step: int, rows: list[TableRows], dense: dict[str, Tensor], twin: PolicyJob) -> None:
    found_rows, found_dense = twin.copy()
    for shard, was, found in zip(twin.shards, rows, found_rows, strict=True):
        wrong = _num_wrong(was, found)
        if wrong:
            raise ThresholdMissed(
                f"the commit of step {step} restores {wrong} rows of {shard.name} other than they were at its boundary",
                expected=f"every bit of its {len(was.ids)} rows",
                do="no figure is printed: look for a row that changed before it was kept",
            )
    if any(not torch.equal(weight, found_dense[name]) for name, weight in dense.items()):
        raise ThresholdMissed(f"the commit of step {step} restores other dense weights", expected="every bit")


def _num_wrong(was: TableRows, found: TableRows) -> int:
    if not torch.equal(was.ids, found.ids):
        return max(1, abs(len(was.ids) - len(found.ids)))
    is_wrong = (was.weights.view(torch.int32) != found.weights.view(torch.int32)).any(dim=1)
    for name, state in was.states.items():
        is_wrong |= (state.view(torch.uint8) != found.states[name].view(torch.uint8)).any(dim=1)
    return int(is_wrong.sum())
