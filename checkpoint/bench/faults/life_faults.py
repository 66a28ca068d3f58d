"""Two lives of one job at once: whatever the older one is doing, a newer one starts, saves, or goes back a commit."""

from __future__ import annotations

import random
from pathlib import Path

from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.fault_job import FaultJob
from ett.checkpoint.bench.faults.faulty_store import FaultyStore
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World
from ett.checkpoint.local_store import LocalStore
from ett.errors import Conflict, EttError

AHEAD = 5  # steps from what the newer life found to what it saves: no state of the older one's
SAVING = (
    "1 record list",
    "2 segment create",
    "2 segment link",
    "2 dense link",
    "4 fragment create",
    "4 fragment link",
    "5 record list",
    "5 record create",
    "5 record link",
    "5 record unlink",
    "6 record list",
    "6 record delete",
)
STARTING = (
    "0 record list",
    "0 fragment read",
    "0 segment read",
    "0 format create",
    "0 format link",
    "0 record create",
    "0 record link",
    "0 record unlink",
    "0 segment list",
    "0 segment delete",
)


class LifeFaults:
    """kinds: what the newer life does at one operation of the older one's save, or of its start."""

    name = "lives"

    def __init__(self, worlds: list[World]) -> None:
        self._worlds = worlds

    def cells(self) -> list[Cell]:
        kinds = ("newer starts", "newer saves", "newer goes back")
        return [Cell(kind, point) for point in (*SAVING, *STARTING) for kind in kinds]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        world = chance.choice(self._worlds)
        store = FaultyStore(world.clone(scratch / "folder"))
        newer: list[FaultJob] = []

        def live(point: str, occurrence: int) -> None:
            if point == cell.point and not newer:
                newer.append(_newer_life(world, LocalStore(store.root), cell.kind, keep_last=chance.choice([1, 2])))

        store.hook = live
        older = world.job(store)
        is_start = cell.point in STARTING
        if is_start and not _starts(older):
            return _after_a_save(world, store, cell.kind, newer[0], is_older_done=False)
        store.step = "1"
        is_older_done = _saves(older, older.step + 1)
        if not newer:
            return not_injected()
        if is_start:
            return _after_two_starts(world, store, older, newer[0], is_older_done=is_older_done)
        return _after_a_save(world, store, cell.kind, newer[0], is_older_done=is_older_done)


def _newer_life(world: World, store: LocalStore, kind: str, keep_last: int) -> FaultJob:
    """Return a life that has done what its kind says; its `step` is what a restart must find."""
    job = FaultJob(world.oracle, store, keep_last=keep_last)
    job.restore(str(world.last - 1) if kind == "newer goes back" else "auto")
    if kind == "newer saves":
        job.train_to(job.step + AHEAD)
        job.save()
    return job


def _starts(job: FaultJob) -> bool:
    """Return whether a life can start: what it restores may be collected under it, and it says so."""
    try:
        job.restore()
    except EttError:
        return False
    return True


def _saves(job: FaultJob, step: int) -> bool:
    """Return whether a life can save. Raises: EttError: something else than its replacement was in the way."""
    job.train_to(step)
    try:
        job.save()
    except Conflict:
        return False
    return True


def _after_a_save(world: World, store: FaultyStore, kind: str, newer: FaultJob, *, is_older_done: bool) -> Verdict:
    """The newer life went on from what was committed then; it can save, the older one cannot."""
    found = newer.step - (AHEAD if kind == "newer saves" else 0)
    if is_older_done and found == world.last and kind != "newer goes back":
        return Verdict("silent", "the older life's save returned after a newer life had gone on from the commit before")
    return restored_verdict(world.oracle, LocalStore(store.root), Expected(last=newer.step, previous=None))


def _after_two_starts(
    world: World, store: FaultyStore, older: FaultJob, newer: FaultJob, *, is_older_done: bool
) -> Verdict:
    """Both have started; who opened the higher epoch can save, the other cannot."""
    is_newer_done = _saves(newer, newer.step + 2 * AHEAD)
    if is_older_done == is_newer_done:
        return Verdict("silent", f"{'both lives' if is_newer_done else 'neither life'} could save")
    last = (newer if is_newer_done else older).step
    return restored_verdict(world.oracle, LocalStore(store.root), Expected(last=last, previous=None))
