"""Folders that faults happen to: made once, then linked for each fault in a millisecond."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.bench.faults.fault_job import FaultJob, Policy
from ett.checkpoint.bench.faults.oracle import Oracle
from ett.checkpoint.incarnation import Epoch
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.store import Store
from ett.clock import Clock

NUM_ROWS = 24


@dataclass(frozen=True, slots=True)
class World:
    """A folder whose newest commit is of step `last`, the one before of `last - 1`; its writer's epoch is `epoch`."""

    folder: Path
    oracle: Oracle
    last: int
    epoch: Epoch
    is_chain: bool
    policy: Policy = "full"

    def clone(self, target: Path) -> Path:
        return linked_copy(self.folder, target)

    def job(self, store: Store, *, keep_last: int = 2, clock: Clock | None = None) -> FaultJob:
        """Return the job as it stands after its last save, over another store of a clone.

        With a policy it is a new life, which knows by its restore alone what is due.
        """
        if self.policy != "full":
            job = FaultJob(self.oracle, store, keep_last=keep_last, clock=clock, policy=self.policy)
            job.restore()
            return job
        job = FaultJob(self.oracle, store, saves_full=not self.is_chain, keep_last=keep_last, clock=clock)
        job.checkpointer._epoch = self.epoch
        job.train_to(self.last)
        return job


def linked_copy(folder: Path, target: Path) -> Path:
    """Make a folder again from hard links: names are written once, so that no file is changed in place."""
    for inside, _, names in os.walk(folder):
        there = target / os.path.relpath(inside, folder)
        there.mkdir(parents=True, exist_ok=True)
        for name in names:
            os.link(os.path.join(inside, name), there / name)
    return target


def fresh_world(folder: Path, seed: int) -> World:
    """Return an empty folder."""
    folder.mkdir(parents=True)
    return World(folder, Oracle(seed, NUM_ROWS), 0, Epoch(epoch=0, seq=0), is_chain=False)


def full_world(folder: Path, seed: int) -> World:
    """Return a folder with two full commits, and what a dead life has left."""
    return _saved(folder, seed, "ff", is_chain=False)


def single_world(folder: Path, seed: int) -> World:
    """Return a folder with one full commit, of few files."""
    return _saved(folder, seed, "f", is_chain=False)


def chain_world(folder: Path, seed: int) -> World:
    """Return a folder with a base and three commits of hot and cold files with tombstones."""
    return _saved(folder, seed, "fddd", is_chain=True)


def policy_world(folder: Path, seed: int) -> World:
    """Return a folder with a base and what the incremental policy wrote after it."""
    return _saved(folder, seed, "ffff", is_chain=False, policy="incremental")


def restarted_world(folder: Path, seed: int) -> World:
    """Return a full world whose newest record is that of a restart."""
    world = full_world(folder, seed)
    job = FaultJob(world.oracle, LocalStore(folder))
    job.restore()
    epoch = job.checkpointer._epoch
    assert epoch is not None
    return World(folder, world.oracle, world.last, epoch, is_chain=False)


def _saved(folder: Path, seed: int, saves: str, *, is_chain: bool, policy: Policy = "full") -> World:
    oracle = Oracle(seed, NUM_ROWS)
    job = FaultJob(oracle, LocalStore(folder), policy=policy)
    job.restore()
    for step, kind in enumerate(saves, start=1):
        job.train_to(step)
        job.saves_full = kind == "f"
        job.save()
    _leave_orphans(folder)
    epoch = job.checkpointer._epoch
    assert epoch is not None
    return World(folder, oracle, len(saves), epoch, is_chain, policy)


def _leave_orphans(folder: Path) -> None:
    for name in (f"d/aa/e000000-{'0' * 32}/t0000.base.w00000.0.seg", f"m/e000000-{'0' * 32}/w00000.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"left")
