"""Processes that the kernel kills: on a real disk, at each operation of a save and at any instant, and over S3."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.faulty_store import any_of
from ett.checkpoint.bench.faults.killed_process import ANY_INSTANT, NEVER, KillOrder
from ett.checkpoint.bench.faults.save_faults import CHANGING, points_of_a_save
from ett.checkpoint.bench.faults.surroundings import Surroundings
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World, linked_copy
from ett.checkpoint.local_store import LocalStore

KIND = "SIGKILL"
OF_S3 = f"{ANY_INSTANT} of a save to S3"
LONGER = 1.3  # times as long as a save takes: the last kills find it done


class KillFaults:
    """Args: trials: a new folder beside the worlds, where a save is tried."""

    name = "process"

    def __init__(self, worlds: list[World], around: Surroundings, trials: Path) -> None:
        self._worlds, self._disk, self._killer, self._bucket = worlds, around.disk, around.killer, around.bucket
        self._seen = [points_of_a_save(world, trials / str(number)) for number, world in enumerate(worlds)]
        self._folders = [Path(shutil.copytree(world.folder, self._disk / str(n))) for n, world in enumerate(worlds)]
        self._within_s = [LONGER * self._save_on_disk_s(number) for number in range(len(worlds))]
        self._within_on_s3_s = LONGER * self._save_to_s3_s() if self._bucket else 0.0

    def cells(self) -> list[Cell]:
        points = sorted({point for seen in self._seen for point in seen if point.endswith(CHANGING)})
        return [Cell(KIND, point) for point in [*points, ANY_INSTANT, *([OF_S3] if self._bucket else [])]]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        if cell.point == OF_S3:
            return self._on_s3(chance)
        number = chance.choice([n for n, seen in enumerate(self._seen) if cell.point in (*seen, ANY_INSTANT)])
        world = self._worlds[number]
        folder = linked_copy(self._folders[number], self._disk / "fault")
        try:
            order = KillOrder(
                where=str(folder),
                point=cell.point,
                occurrence=any_of(self._seen[number].get(cell.point, 1), cell.point, chance),
                seed=chance.getrandbits(32),
                within_s=self._within_s[number],
            )
            is_done = self._killer.kill_a_save(world, order).is_done
            if is_done and cell.point != ANY_INSTANT:
                return not_injected()
            expected = Expected(last=world.last + 1, previous=None if is_done else world.last)
            return restored_verdict(world.oracle, LocalStore(folder), expected)
        finally:
            shutil.rmtree(folder)

    def _on_s3(self, chance: random.Random) -> Verdict:
        assert self._bucket is not None
        world, prefix = self._worlds[0], f"{chance.getrandbits(64):016x}"
        store = self._bucket.filled(prefix, world)
        order = KillOrder(
            where=store.uri,
            point=ANY_INSTANT,
            seed=chance.getrandbits(32),
            within_s=self._within_on_s3_s,
            url=self._bucket.url,
        )
        is_done = self._killer.kill_a_save(world, order).is_done
        expected = Expected(last=world.last + 1, previous=None if is_done else world.last)
        return restored_verdict(world.oracle, store, expected)

    def _save_on_disk_s(self, number: int) -> float:
        """Return how long a save takes that nobody kills."""
        folder = linked_copy(self._folders[number], self._disk / "trial")
        try:
            return self._killer.kill_a_save(
                self._worlds[number], KillOrder(where=str(folder), point=NEVER, seed=0)
            ).took_s
        finally:
            shutil.rmtree(folder)

    def _save_to_s3_s(self) -> float:
        assert self._bucket is not None
        store = self._bucket.filled("trial", self._worlds[0])
        order = KillOrder(where=store.uri, point=NEVER, seed=0, url=self._bucket.url)
        return self._killer.kill_a_save(self._worlds[0], order).took_s
