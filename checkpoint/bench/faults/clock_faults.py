"""Clocks that are wrong while a save is under way: the collecting machine's, the store's files', the writer's."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.faulty_store import FaultyStore
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World
from ett.checkpoint.collection import Keep, collect, plan_collection
from ett.checkpoint.local_store import LocalStore
from ett.errors import Conflict, CorruptState

DAY_S, YEARS_S = 86400.0, 10 * 365 * 86400.0
POINTS = (
    "2 segment create",
    "2 segment link",
    "2 dense link",
    "5 record create",
    "6 record list",
    "6 record delete",
)
COLLECTORS: dict[str, Callable[[random.Random], float]] = {  # kind -> seconds ahead, at each look at the clock
    "collector days ahead": lambda chance: 2 * DAY_S,
    "collector years ahead": lambda chance: YEARS_S,
    "collector years behind": lambda chance: -YEARS_S,
    "collector jumps": lambda chance: chance.choice([-YEARS_S, -DAY_S, 0.0, DAY_S, YEARS_S]),
}
FILES = {"files years old": -YEARS_S, "files years ahead": YEARS_S}
WRITER = "writer jumps"


class ClockFaults:
    """`gc` runs on another machine at one operation of a save, with every file that no commit needs to be found."""

    name = "clock"

    def __init__(self, worlds: list[World]) -> None:
        self._worlds = worlds

    def cells(self) -> list[Cell]:
        return [Cell(kind, point) for kind in (*COLLECTORS, *FILES, WRITER) for point in POINTS]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        world = chance.choice(self._worlds)
        store = FaultyStore(world.clone(scratch / "folder"))
        done: list[str] = []

        def strike(point: str, occurrence: int) -> None:
            if point == cell.point and not done:
                done.append(point)
                _collect(store.root, cell.kind, chance)

        store.hook = strike
        job = world.job(store, clock=_JumpingClock(chance) if cell.kind == WRITER else None)
        store.step = "1"
        job.train_to(world.last + 1)
        job.save()
        if not done:
            return not_injected()
        _collect(store.root, cell.kind, chance)
        return restored_verdict(world.oracle, LocalStore(store.root), Expected(last=job.step, previous=None))


class _JumpingClock:
    """A `Clock` whose wall time jumps; the other never does."""

    late_threads = ()

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def wall_ns(self) -> int:
        return int((1.7e9 + self._chance.choice([-YEARS_S, 0.0, YEARS_S])) * 1e9)

    def mono_ns(self) -> int:
        return 0


def _right(chance: random.Random) -> float:
    return 0.0


def _collect(root: Path, kind: str, chance: random.Random) -> None:
    """Do what `ett checkpoint gc --yes` does, with a clock as the kind says."""
    store, keep = LocalStore(root), Keep(last=chance.choice([1, 2]))
    if kind in FILES:
        for path in root.rglob("*"):
            os.utime(path, (time.time() + FILES[kind],) * 2)
    now_unix_s = time.time()
    ahead = COLLECTORS.get(kind, _right)

    def wrong() -> float:
        return now_unix_s + ahead(chance)

    with patch.object(time, "time", wrong), suppress(Conflict, CorruptState):
        collect(store, keep, plan_collection(store, keep))
