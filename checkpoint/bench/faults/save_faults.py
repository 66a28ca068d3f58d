"""Faults at every operation of a save and of a restart, on a local disk: deaths, errors, and writes that lie."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.fault_job import FaultJob
from ett.checkpoint.bench.faults.faulty_store import ERRORS, Aim, FaultyStore, Killed, any_of
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World, linked_copy
from ett.checkpoint.local_store import LocalStore
from ett.errors import EttError

DEATHS = ("kill", "power")
LOSSES = ("lost write", "flip", "zeros")  # the disk says that it has what it has not
LIES = ("short write", *LOSSES)
CHANGING = ("create", "write", "fsync", "link", "sync", "unlink", "delete")
FILLING = ("create", "write", "link")  # what a full disk refuses
GOES_ON = 0.2  # share of the processes that survive, and then save again
RETURNED = "6 save returned"


class SaveFaults:
    """A save, full or of a chain, in which one operation is hit. After an error the same process saves again."""

    name = "save"

    def __init__(self, worlds: list[World], scratch: Path) -> None:
        self._worlds = worlds
        self._seen = [points_of_a_save(world, scratch / str(number)) for number, world in enumerate(worlds)]

    def cells(self) -> list[Cell]:
        return _cells(self._seen)

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        number = chance.choice([n for n, seen in enumerate(self._seen) if cell.point in seen])
        world = self._worlds[number]
        aim = _aim(cell, self._seen[number][cell.point], chance)
        store = FaultyStore(world.clone(scratch / "folder"), aim)
        job = world.job(store)
        store.step = "1"
        job.train_to(world.last + 1)
        try:
            job.save()
            store.operate("returned", "save")
            is_saved = True
        except Killed:
            is_saved = cell.point == RETURNED
        except EttError as err:
            if "/" not in err.fact:
                return Verdict("crashed", f"a save failed without a place: {err}")
            is_saved = False
        if not store.has_struck:
            return not_injected()
        expected = _after_save(cell, world, is_saved=is_saved)
        if store.is_dead:
            return restored_verdict(world.oracle, LocalStore(store.root), expected)
        # The process goes on in the folder; the restore, which would fence it, is of a copy.
        copy = LocalStore(linked_copy(store.root, scratch / "copy"))
        seen = restored_verdict(world.oracle, copy, expected)
        goes_on = seen.outcome != "silent" and not (is_saved and cell.kind in LOSSES)
        return _saves_again(world, store, job, seen) if goes_on and chance.random() < GOES_ON else seen


class StartFaults:
    """A restart, or a first start, in which one operation is hit: the next one finds what was there."""

    name = "start"

    def __init__(self, worlds: list[World], scratch: Path) -> None:
        self._worlds = worlds
        self._seen = []
        for number, world in enumerate(worlds):
            store = FaultyStore(world.clone(scratch / str(number)))
            world.job(store).restore()
            self._seen.append(store.seen)

    def cells(self) -> list[Cell]:
        return _cells(self._seen)

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        number = chance.choice([n for n, seen in enumerate(self._seen) if cell.point in seen])
        world = self._worlds[number]
        store = FaultyStore(world.clone(scratch / "folder"), _aim(cell, self._seen[number][cell.point], chance))
        is_refusable = cell.kind in ERRORS or cell.point.endswith("read")
        expected = Expected(last=world.last, previous=world.last - 1, may_refuse=is_refusable, is_said=True)
        first = None
        with suppress(Killed):
            first = restored_verdict(world.oracle, store, expected)
        if not store.has_struck:
            return not_injected()
        if first is not None and first.outcome == "silent":
            return first
        # What a start has gone back to, and said so, is what the next one goes on from.
        newest = world.last - 1 if first is not None and first.outcome == "previous" else world.last
        is_damaged = cell.kind in LOSSES and cell.point.endswith("write")
        return restored_verdict(
            world.oracle, LocalStore(store.root), Expected(last=newest, previous=None, may_refuse=is_damaged)
        )


def points_of_a_save(world: World, folder: Path) -> dict[str, int]:
    store = FaultyStore(world.clone(folder))
    job = world.job(store)
    store.seen.clear()
    store.step = "1"
    job.train_to(world.last + 1)
    job.save()
    return {**store.seen, RETURNED: 1}


def _cells(seen_of_worlds: Iterable[Iterable[str]]) -> list[Cell]:
    points = sorted({point for seen in seen_of_worlds for point in seen})
    return [Cell(kind, point) for point in points for kind in _kinds(point)]


def _kinds(point: str) -> list[str]:
    verb = point.rpartition(" ")[2]
    # A death before something is read leaves what a death before the next write leaves.
    kinds = [*DEATHS] if verb in (*CHANGING, "returned") else []
    if verb == "returned":
        return kinds
    kinds.append("EIO")
    if verb in FILLING:
        kinds.append("ENOSPC")
    if verb in ("create", "link", "delete"):
        kinds.append("EACCES")
    if verb == "write":
        kinds += LIES
    if verb == "read":
        kinds.append("flip")
    return kinds


def _aim(cell: Cell, times: int, chance: random.Random) -> Aim:
    occurrence = any_of(times, cell.point, chance)
    return Aim(cell.kind, cell.point, occurrence, stays=cell.kind in ERRORS and chance.random() < 0.5, chance=chance)


def _after_save(cell: Cell, world: World, *, is_saved: bool) -> Expected:
    """Return what a restore may give: a save that returned is there, whatever happens then to other things."""
    last, previous = world.last + 1, world.last
    if cell.kind in LOSSES and cell.point.endswith("write"):
        return Expected(last=last, previous=previous, is_said=is_saved)
    return Expected(last=last, previous=None if is_saved else previous)


def _saves_again(world: World, store: FaultyStore, job: FaultJob, seen: Verdict) -> Verdict:
    """Let the process save the next step, when what failed works again."""
    store.aim = None
    job.train_to(job.step + 1)
    job.save()
    again = restored_verdict(world.oracle, LocalStore(store.root), Expected(last=job.step, previous=None))
    return again if again.outcome == "silent" else seen
