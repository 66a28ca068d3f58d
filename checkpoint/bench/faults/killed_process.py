"""A process that forks saves which the kernel kills: `python -m …killed_process` takes one JSON order a line.

It saves once, so that all that a save imports is there, and forks for each order: a fresh process in milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ett.checkpoint.bench.faults.faulty_store import Aim, FaultyStore
from ett.checkpoint.bench.faults.oracle import Oracle
from ett.checkpoint.bench.faults.quiet import quiet
from ett.checkpoint.bench.faults.worlds import NUM_ROWS, World, full_world
from ett.checkpoint.bench.seaweed import s3_options
from ett.checkpoint.incarnation import Epoch
from ett.checkpoint.s3_store import S3Store
from ett.checkpoint.store import Store
from ett.errors import Unreachable

ANY_INSTANT = "any instant"
NEVER = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KillOrder:
    """where: a folder, or with `url`, of an S3 server, an s3:// uri. point: of a FaultyStore, ANY_INSTANT, or NEVER.
    within_s: ANY_INSTANT is a random one of so many seconds from the save's begin.
    """

    where: str
    point: str
    seed: int
    occurrence: int = 0
    within_s: float = 0.0
    url: str = ""


@dataclass(frozen=True, slots=True)
class SaveEnd:
    is_done: bool  # before it could be killed
    took_s: float


class Killer:
    """The other end of the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def kill_a_save(self, world: World, order: KillOrder) -> SaveEnd:
        """Let a process of its own save over a copy of a world, and be killed, or be done before."""
        facts = {"seed": world.oracle.seed, "last": world.last, "epoch": asdict(world.epoch), "chain": world.is_chain}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"world": facts, "order": asdict(order)}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Unreachable("the process that forks what is killed has ended")
        status, took_s = json.loads(answer)
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"a save that was to be killed ended with {status}")
        return SaveEnd(status == 0, took_s)


@contextmanager
def killer() -> Iterator[Killer]:
    command = [sys.executable, "-m", "ett.checkpoint.bench.faults.killed_process"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Killer(process)
    finally:
        process.communicate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, quiet(random.Random(0)):
        full_world(Path(folder) / "world", 0)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(_forked(asked["world"], KillOrder(**asked["order"]))), flush=True)


def _forked(world: dict[str, Any], order: KillOrder) -> tuple[int, float]:
    """Fork, have the fork killed, and return how it ended, after how many seconds of saving."""
    chance = random.Random(order.seed)
    began, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(began)
        _save(world, order, chance, ready)
        os._exit(0)
    os.close(ready)
    os.read(began, 1)  # until the fork is about to save
    os.close(began)
    begin_s = time.perf_counter()
    if order.point == ANY_INSTANT:
        time.sleep(chance.random() * order.within_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), time.perf_counter() - begin_s


def _save(known: dict[str, Any], order: KillOrder, chance: random.Random, ready: int) -> None:
    oracle = Oracle(known["seed"], NUM_ROWS)
    world = World(Path(), oracle, known["last"], Epoch(**known["epoch"]), known["chain"])
    store: Store
    if order.url:
        store = S3Store(order.where, options=s3_options(order.url))
        store.list("commits")  # a session takes longer to make than a save
    else:
        aim = Aim("kill", order.point, order.occurrence, stays=False, chance=chance)
        store = FaultyStore(Path(order.where), aim, on_kill=lambda: os.kill(os.getpid(), signal.SIGKILL))
        store.step = "1"
    with quiet(chance):
        job = world.job(store)
        job.train_to(world.last + 1)
        os.close(ready)
        job.save()


if __name__ == "__main__":
    main()
