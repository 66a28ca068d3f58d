"""Faults on the way from a buffer to the folder that it is uploaded to, which is a second folder here."""

from __future__ import annotations

import random
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

from ett.checkpoint import uploader
from ett.checkpoint.bench.faults.damage import DAMAGES
from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.fault_job import FaultJob
from ett.checkpoint.bench.faults.faulty_store import Aim, FaultyStore, any_of, role_of
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, compared, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World, linked_copy
from ett.checkpoint.local_store import LocalStore
from ett.errors import EttError

DEATHS = ("killed", "host lost")  # and started again on the same host, or on one that has no buffer
HIT = (" write", " link", " sync", " delete")
DAMAGED = ("flip", "truncate", "lose")
ROLES = ("segment", "dense", "fragment", "record")


class UploadFaults:
    """A save ends in the buffer; then its upload is hit at an operation on the remote folder."""

    name = "upload"

    def __init__(self, world: World, scratch: Path) -> None:
        self._world = world
        store = FaultyStore(world.clone(scratch / "remote"))
        job = self._started(store, scratch / "buffer")
        _save_and_send(job, store)
        self._seen = {point: count for point, count in store.seen.items() if point.startswith(("3", "5", "6"))}

    def cells(self) -> list[Cell]:
        points = [point for point in sorted(self._seen) if point.endswith(HIT)]
        deaths = [Cell(kind, point) for point in points for kind in (*DEATHS, "EIO")]
        return [*deaths, *(Cell(kind, f"buffer: {role}") for kind in DAMAGED for role in ROLES)]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        store = FaultyStore(self._world.clone(scratch / "remote"))
        job = self._started(store, scratch / "buffer")
        if cell.kind in DAMAGED:
            return self._with_damage(cell, chance, scratch, job, store)
        kind = "kill" if cell.kind in DEATHS else cell.kind
        occurrence = any_of(self._seen[cell.point], cell.point, chance)
        store.aim = Aim(kind, cell.point, occurrence, stays=False, chance=chance)
        is_there = _save_and_send(job, store)
        if not store.has_struck:
            return not_injected()
        last, previous = self._world.last + 1, self._world.last
        elsewhere = Expected(last=last, previous=None if is_there else previous)
        if cell.kind != "killed":
            return restored_verdict(self._world.oracle, LocalStore(store.root), elsewhere)
        return self._on_the_same_host(store.root, scratch / "buffer", Expected(last=last, previous=None))

    def _with_damage(
        self, cell: Cell, chance: random.Random, scratch: Path, job: FaultJob, store: FaultyStore
    ) -> Verdict:
        """A file in the buffer is damaged when its upload begins: it must not be sent, or must be found out there."""
        root, damaged = scratch / "buffer", list[Path]()

        def damage(point: str, occurrence: int) -> None:
            if point.startswith("3") and not damaged:
                (local,) = (path for path in root.iterdir() if path.is_dir())
                new = [path for path in sorted(local.rglob("*")) if path.is_file() and path.name != "HOST.json"]
                role = cell.point.removeprefix("buffer: ")
                files = [path for path in new if role_of(str(path.relative_to(local))) == role]
                damaged.append(chance.choice(files[-2:]))
                DAMAGES[cell.kind](damaged[0], chance, new)

        store.hook = damage
        is_there = _save_and_send(job, store)
        if not damaged:
            return not_injected()
        last, previous = self._world.last + 1, self._world.last
        expected = Expected(last=last, previous=None if is_there else previous)
        elsewhere = LocalStore(linked_copy(store.root, scratch / "copy"))
        seen = restored_verdict(self._world.oracle, elsewhere, expected)
        if seen.outcome in ("silent", "crashed"):
            return seen
        return self._on_the_same_host(store.root, root, expected)

    def _on_the_same_host(self, remote: Path, buffer: Path, expected: Expected) -> Verdict:
        """Start again beside the buffer; when the upload has gone on, a host without it finds the same."""
        again = FaultJob(self._world.oracle, LocalStore(remote), buffer_dir=str(buffer))
        position = again.restore()
        with _hasty():
            again.checkpointer.close()
        seen = compared(again, position.fallback_from if position else None, expected)
        if seen.outcome in ("silent", "crashed"):
            return seen
        found = Expected(last=again.step, previous=None)
        elsewhere = restored_verdict(self._world.oracle, LocalStore(remote), found)
        return seen if elsewhere.outcome == "last" else elsewhere

    def _started(self, store: FaultyStore, buffer: Path) -> FaultJob:
        job = FaultJob(self._world.oracle, store, keep_last=1, buffer_dir=str(buffer))
        job.restore()
        return job


def _save_and_send(job: FaultJob, store: FaultyStore) -> bool:
    """Save the next step and wait for its upload; return whether it arrived as far as the job knows."""
    tier = job.checkpointer._tier
    assert tier is not None
    store.step = "3"
    job.train_to(job.step + 1)
    with _hasty():
        commit = job.save()
        with suppress(EttError):
            tier.uploader.drain()
        tier.uploader.close()
    return tier.uploader.newest_remote == commit.seq


def _hasty() -> ExitStack:
    """Wait a moment only before an upload is tried again, and send one file at a time."""
    patches = ExitStack()
    for name, value in (("FIRST_WAIT_S", 0.001), ("LONGEST_WAIT_S", 0.001), ("FILES_AT_ONCE", 1)):
        patches.enter_context(patch.object(uploader, name, value))
    return patches
