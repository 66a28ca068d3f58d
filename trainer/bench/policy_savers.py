"""Who saves while `ett bench checkpoint` trains: nobody, a Checkpointer under a policy, or DCP of torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ett.checkpoint.bench.bench_disk import drop_from_cache
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.dcp import dcp_async_save, dcp_load, dcp_save, dcp_stager
from ett.checkpoint.bench.spent import Spent, spent
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.save_facts import SaveFacts
from ett.checkpoint.store import Store
from ett.errors import ThresholdMissed
from ett.trainer.bench.policy_job import PolicyJob

PolicyName = Literal["full", "adaptive", "incremental", "differential", "check_n_run"]
WAIT_S = 300.0  # longest that a save may take


class Saver(Protocol):
    """`begin`, `trigger` at step boundaries, `settle`, `end`; then `restore`."""

    name: str

    def begin(self, folder: Path) -> None:
        """Save everything once, to an empty folder: what a first save takes is not timed."""

    def trigger(self, step: int) -> None:
        """Save; return when training may go on."""

    def settle(self) -> None:
        """Wait for the save that is under way."""

    def end(self) -> Sequence[SaveFacts]:
        """Return what each save since `begin` says of itself; nobody follows the tables any more."""

    def restore(self, twin: PolicyJob) -> Spent:
        """Restore to a model of the same recipe, with nothing in the page cache."""


class NoSaves:
    name = "none"

    def begin(self, folder: Path) -> None:
        return None

    def trigger(self, step: int) -> None:
        return None

    def settle(self) -> None:
        return None

    def end(self) -> Sequence[SaveFacts]:
        return ()

    def restore(self, twin: PolicyJob) -> Spent:
        raise AssertionError("there is nothing to restore")


class Watched(QuietRun):
    """Keeps what each commit says of its save."""

    def __init__(self) -> None:
        self.facts: list[SaveFacts] = []

    def emit(self, ev: str, **fields: Any) -> None:
        if ev == "ckpt_detail":
            facts = SaveFacts.of_stats(fields)
            assert facts is not None, fields
            self.facts.append(facts)
        if ev == "ckpt_abandoned":
            raise ThresholdMissed(f"a save came to nothing: {fields}", expected="a commit")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOfSaves:
    name: str
    policy: PolicyName
    max_chain: int
    background: bool = False


class PolicySaver:
    """The product's Checkpointer, told of every boundary at which to save."""

    def __init__(
        self,
        job: PolicyJob,
        policy: PolicyOfSaves,
        store_of: Callable[[Path], Store] | None = None,
        *,
        keep_last: int = 2,
    ) -> None:
        """Args: store_of: opens a folder as another store than the product would."""
        self.name, self.policy = policy.name, policy
        self._job, self._store_of, self._keep_last = job, store_of, keep_last
        self._run = Watched()
        self._folder = Path()
        self._checkpointer: Checkpointer | None = None

    def begin(self, folder: Path) -> None:
        self._folder, self._run = folder, Watched()
        self._checkpointer = self._open(self._job, self._run)
        self._checkpointer.save(0, 0)
        self._run.facts.clear()

    def trigger(self, step: int) -> None:
        self._checkpointer_now().step(step, step)

    def settle(self) -> None:
        if not self._checkpointer_now().has_settled(WAIT_S):
            raise ThresholdMissed(f"{self.name}: a save takes more than {WAIT_S:g} s", expected="a commit")

    def end(self) -> Sequence[SaveFacts]:
        self._checkpointer_now().close()
        self._checkpointer = None
        self._job.untrack()
        return self._run.facts

    def restore(self, twin: PolicyJob, step: int | None = None) -> Spent:
        """Args: step: of the commit; None: the newest."""
        checkpointer = self._open(twin, QuietRun())
        drop_from_cache(self._folder)
        took = spent(lambda: checkpointer.restore("auto" if step is None else str(step)))
        checkpointer.close()
        twin.untrack()
        return took

    def _open(self, job: PolicyJob, run: QuietRun) -> Checkpointer:
        config = CheckpointConfig(
            uri=str(self._folder),
            interval="1 steps",
            policy=self.policy.policy,
            max_chain=self.policy.max_chain,
            background=self.policy.background,
            keep_last=self._keep_last,
            stall_budget_s=WAIT_S,  # what a policy holds training for is measured, and not cut short
        )
        store = None if self._store_of is None else self._store_of(self._folder)
        return Checkpointer(config, model=job.model, optimizer=job.optimizer, run=run, held=job.rows, store=store)

    def _checkpointer_now(self) -> Checkpointer:
        assert self._checkpointer is not None, "begin comes first"
        return self._checkpointer


class DcpSaver:
    """DCP of torch, of the same rows as dense tensors.

    The asynchronous one copies them to memory that it uses again, and writes beside training. What it wrote is deleted
    when the block is over, which is not timed.
    """

    def __init__(self, job: PolicyJob, *, is_async: bool) -> None:
        self.name = "dcp_async" if is_async else "dcp_sync"
        self._job, self._is_async = job, is_async
        self._folder, self._sizes = Path(), list[int]()
        self._newest: Path | None = None
        self._running: Future[Any] | None = None
        self._stager: Any = None

    def begin(self, folder: Path) -> None:
        self._folder = folder
        self._stager = dcp_stager() if self._is_async else None
        self.trigger(0)
        self.settle()

    def trigger(self, step: int) -> None:
        self.settle()
        self._newest = self._folder / str(step)
        with self._job.rows:
            if self._is_async:
                self._running = dcp_async_save(self._job.tensors(), self._newest, self._stager)
            else:
                dcp_save(self._job.tensors(), self._newest)

    def settle(self) -> None:
        if self._running is not None:
            self._running.result(WAIT_S)
            self._running = None

    def end(self) -> Sequence[SaveFacts]:
        if self._stager is not None:
            self._stager.close()
        saved = [path for path in self._folder.iterdir() if path.name != "0"]
        facts = [SaveFacts(stall_s=0.0, write_s=0.0, dense_bytes=_bytes_of(path)) for path in saved]
        for path in self._folder.iterdir():
            if path != self._newest:
                shutil.rmtree(path)
        return facts

    def restore(self, twin: PolicyJob) -> Spent:
        assert self._newest is not None
        drop_from_cache(self._folder)
        state, newest = twin.tensors(), self._newest
        return spent(lambda: dcp_load(state, newest))


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
