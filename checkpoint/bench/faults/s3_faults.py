"""Faults between a job and a real S3 server: deaths at each request, and whatever a network does to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.fault_proxy import Fault, FaultProxy, Request
from ett.checkpoint.bench.faults.faulty_store import Killed
from ett.checkpoint.bench.faults.plain_bucket import PlainBucket
from ett.checkpoint.bench.faults.s3_requests import Death, MortalClient, Steps
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World
from ett.checkpoint.bench.seaweed import s3_options, seaweed
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.s3_client import RetryPolicy, S3Client
from ett.checkpoint.s3_store import S3Store
from ett.checkpoint.store import Store
from ett.errors import EttError

BUCKET = "faults"
OVER_S3 = 0.2  # share of the restores that read the bucket; the others read a copy of it, in a fifth of the time
AHEAD = 5  # steps from what a newer life found to what it saves
PATIENCE = RetryPolicy(attempts=5, first_wait_s=0.002, longest_wait_s=0.01, connect_s=10, answer_s=30)
DEATHS: tuple[Death, ...] = ("killed before", "killed after")
LATE = "late after death"
ALL = ("put", "get", "head", "list", "delete", "uploads")
NETWORK: dict[Fault, tuple[str, ...]] = {  # kind -> how the points end at which it happens
    "reset": ALL,
    "lost answer": ALL,
    "torn answer": ("get", "list", "uploads"),
    "unavailable": ALL,
    "twice": ("put", "delete"),
    "held": ("put", "delete"),
    "expired": ("segment put", "record put"),  # each costs a new session, a quarter of a second
    "conflict": ("put",),
    "conflict after acting": ("put",),
}


_sleep = asyncio.sleep


async def _no_sleep(delay: float) -> None:
    await _sleep(0)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A running server, and a proxy before it; sessions take long to make, so all faults share two."""

    url: str
    direct: S3Client
    proxied: S3Client
    proxy: FaultProxy
    plain: PlainBucket

    def store(self, prefix: str, client: S3Client) -> S3Store:
        store = S3Store(f"s3://{BUCKET}/{prefix}", policy=PATIENCE)
        store.client = client
        return store

    def filled(self, prefix: str, world: World) -> S3Store:
        """Put a world below a prefix and return its store."""
        self.plain.fill(prefix, world.folder)
        return self.store(prefix, self.direct)


@contextmanager
def bucket(folder: Path) -> Iterator[Bucket]:
    """Run a SeaweedFS. Raises: Unreachable: there is none here."""
    with seaweed(folder) as (url, _):
        proxy = FaultProxy(int(url.rpartition(":")[2]))
        direct, proxied = (S3Client(BUCKET, PATIENCE, s3_options(where)) for where in (url, proxy.url))
        direct.run(lambda: direct.request("create_bucket"))
        plain = PlainBucket(url, BUCKET)
        try:
            yield Bucket(url, direct, proxied, proxy, plain)
        finally:
            plain.close()
            proxy.close()


class S3Faults:
    """Network faults of a kind happen to every point of a save, or of a start, once each, before one restore."""

    name = "s3"

    def __init__(self, bucket: Bucket, world: World) -> None:
        self._bucket, self._world = bucket, world
        self._points = {first: self._points_of(first) for first in ("1", "0")}

    def cells(self) -> list[Cell]:
        deaths: list[Cell] = []
        for points in self._points.values():
            changing = [point for point in points if point.endswith((" put", " delete"))]
            # A death before a request that changes something is one after the change before it.
            deaths += [Cell("killed before", min(changing)), *(Cell("killed after", point) for point in changing)]
        late = [Cell(LATE, point) for point in self._points["1"] if point.endswith((" put", "record delete"))]
        return [*deaths, *late, *(Cell(kind, what) for kind in NETWORK for what in ("a save", "a start"))]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        with patch.object(asyncio, "sleep", _no_sleep):  # s3fs waits a tenth of a second after each 503
            return self._inject(cell, chance, scratch / "copy")

    def _inject(self, cell: Cell, chance: random.Random, copy: Path) -> Verdict:
        prefix = f"{chance.getrandbits(64):016x}"
        copy_to = None if chance.random() < OVER_S3 else copy
        self._bucket.filled(prefix, self._world)
        self._bucket.proxy.forget()
        if cell.kind in DEATHS:
            return self._killed(cell, prefix, copy_to)
        if cell.kind == LATE:
            return self._late(cell, chance, prefix, copy_to)
        return self._disturbed(cell, prefix, copy_to)

    def _killed(self, cell: Cell, prefix: str, copy_to: Path | None) -> Verdict:
        is_start = cell.point.startswith("0")
        steps = Steps(f"{prefix}/", "0" if is_start else "1")
        struck: list[str] = []

        def strikes(verb: str, key: str) -> Death | None:
            if steps.point(verb, key) != cell.point or struck:
                return None
            struck.append(key)
            return "killed before" if cell.kind == "killed before" else "killed after"

        with suppress(Killed):
            self._act(self._bucket.store(prefix, MortalClient(self._bucket.direct, strikes)), is_start=is_start)
        if not struck:
            return not_injected()
        return self._restored(prefix, copy_to, is_start=is_start, is_done=False)

    def _late(self, cell: Cell, chance: random.Random, prefix: str, copy_to: Path | None) -> Verdict:
        """A request lies in the network while its process dies and a newer life starts and saves; then it arrives."""
        proxy, steps = self._bucket.proxy, Steps(f"{prefix}/", "1")
        held: list[Request] = []

        def plan(request: Request) -> Fault | None:
            if held:
                return "reset"
            if steps.of_http(request) != cell.point:
                return None
            held.append(request)
            return "held"

        proxy.plan = plan
        impatient = S3Client(BUCKET, replace(PATIENCE, attempts=1), self._bucket.proxied._options)
        impatient._system, impatient._owner = self._bucket.proxied._system, self._bucket.proxied._owner
        impatient._since = self._bucket.proxied._since
        with suppress(EttError):
            self._act(self._bucket.store(prefix, impatient), is_start=False)
        if not held:
            return not_injected()
        newer = self._world.job(self._bucket.store(prefix, self._bucket.direct), keep_last=chance.choice([1, 2]))
        newer.restore()
        for _ in range(chance.choice([1, 2])):
            newer.train_to(newer.step + AHEAD)
            newer.save()
        proxy.release()
        store = self._left(prefix, copy_to)
        return restored_verdict(self._world.oracle, store, Expected(last=newer.step, previous=None))

    def _disturbed(self, cell: Cell, prefix: str, copy_to: Path | None) -> Verdict:
        is_start = cell.point == "a start"
        steps, hit = Steps(f"{prefix}/", "0" if is_start else "1"), list[str]()
        kind: Fault = next(kind for kind in NETWORK if kind == cell.kind)

        def plan(request: Request) -> Fault | None:
            point = steps.of_http(request)
            if point in hit or not point.endswith(NETWORK[kind]):
                return None
            hit.append(point)
            return kind

        self._bucket.proxy.plan = plan
        is_done = True
        try:
            self._act(self._bucket.store(prefix, self._bucket.proxied), is_start=is_start)
        except EttError:
            is_done = False
        self._bucket.proxy.release()
        verdict = self._restored(prefix, copy_to, is_start=is_start, is_done=is_done)
        return replace(verdict, points=tuple(hit)) if hit else not_injected()

    def _act(self, store: S3Store, *, is_start: bool) -> None:
        job = self._world.job(store, keep_last=1)
        if is_start:
            job.restore()
            return
        job.train_to(self._world.last + 1)
        job.save()

    def _left(self, prefix: str, copy_to: Path | None) -> Store:
        """Return what the bucket holds: itself, or a copy in a new folder."""
        if copy_to is None:
            return self._bucket.store(prefix, self._bucket.direct)
        return LocalStore(self._bucket.plain.copy(prefix, copy_to))

    def _restored(self, prefix: str, copy_to: Path | None, *, is_start: bool, is_done: bool) -> Verdict:
        last, previous = self._world.last + (not is_start), self._world.last
        expected = Expected(last=last, previous=None if is_done or is_start else previous)
        return restored_verdict(self._world.oracle, self._left(prefix, copy_to), expected)

    def _points_of(self, first: str) -> list[str]:
        """Return the points of a save or a start, sorted: its threads do not always send in the same order."""
        prefix = f"dry-{first}"
        self._bucket.filled(prefix, self._world)
        self._bucket.proxy.forget()
        self._act(self._bucket.store(prefix, self._bucket.proxied), is_start=first == "0")
        steps = Steps(f"{prefix}/", first)
        return sorted({steps.of_http(request) for request in self._bucket.proxy.seen})
