"""Many reads under way at once bring what one brings, and fail as one does."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chain_world import SPEC, ChainWorld, Values
from checkpoint_world import Meeting, Rank, ThreadRanks, keeps_a_program, saved_world
from s3_servers import QUICK

from ett.checkpoint import table_segments
from ett.checkpoint.bench.faults.fault_proxy import Fault, FaultProxy, Request
from ett.checkpoint.bench.folder_bucket import folder_bucket
from ett.checkpoint.bench.seaweed import s3_options
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import combine
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.read_plan import DISK_READERS, reads_at_once
from ett.checkpoint.s3_store import S3Store
from ett.checkpoint.store import ObjectReader, Store
from ett.checkpoint.table_reader import TableToRead, read_tables
from ett.checkpoint.table_segments import Rows
from ett.errors import CorruptState, Unreachable


class FarStore(LocalStore):
    """Not local by its uri; counts how many reads are under way, and holds the first until `together` are."""

    def __init__(self, root: Path, together: int = 1) -> None:
        super().__init__(root)
        self.uri = "far://bucket"
        self.num_reading, self.most = 0, 0
        self._meeting: threading.Barrier | None = threading.Barrier(together, timeout=300)
        self._lock = threading.Lock()

    @contextmanager
    def open(self, name: str) -> Iterator[ObjectReader]:  # type: ignore[override]
        with super().open(name) as reader:
            yield _Reader(self, reader)

    def count(self, change: int) -> None:
        with self._lock:
            self.num_reading += change
            self.most = max(self.most, self.num_reading)

    def meet(self) -> None:
        meeting = self._meeting
        if meeting is not None and not meeting.broken:
            meeting.wait()
            self._meeting = None


class _Reader:
    def __init__(self, store: FarStore, reader: ObjectReader) -> None:
        self._store, self._reader, self.size = store, reader, reader.size

    def read_into(self, offset: int, target: memoryview) -> int:
        self._store.count(1)
        try:
            self._store.meet()
            return self._reader.read_into(offset, target)
        finally:
            self._store.count(-1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChainWorld:
    """A chain of many small files, on a disk."""
    return chain(tmp_path / "chain", 7, monkeypatch)


def chain(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, saves: int = 5) -> ChainWorld:
    monkeypatch.setattr(table_segments, "SEGMENT_BYTES", 1 << 13)
    world = ChainWorld(folder, random.Random(seed), num_writers=2)
    for _ in range(3):
        world.train()
    world.save_base()
    for number in range(saves):
        world.train()
        world.save_delta(fails=number == 1)
    return world


def read(world: ChainWorld, store: Store, reads: int, rank: int = 0, world_size: int = 1) -> tuple[Values, int, str]:
    found: Values = {}

    def take(rows: Rows) -> None:
        for n, row_id in enumerate(rows.ids.tolist()):
            assert row_id not in found
            found[row_id] = tuple(column[n].tobytes() for column in rows.columns)

    table = TableToRead(spec=SPEC, files=tuple(world.live), owned=lambda ids: ids % world_size == rank, take=take)
    (read,) = read_tables(store, [table], BufferPool(), reads)
    return found, read.num_rows, read.digest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_any_number_of_reads_and_ranks_bring_the_table(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = chain(tmp_path, seed, monkeypatch), random.Random(seed)
    for reads, world_size in ((1, 1), (rng.randrange(2, 33), rng.randrange(1, 5))):
        ranks = [read(world, FarStore(tmp_path), reads, rank, world_size) for rank in range(world_size)]
        assert {row_id: row for rows, _, _ in ranks for row_id, row in rows.items()} == world.rows
        assert combine([digest for _, _, digest in ranks]) == world.digest()


def test_so_many_reads_are_under_way(world: ChainWorld) -> None:
    store = FarStore(world.folder, together=6)
    assert read(world, store, 6)[0] == world.rows
    assert store.most == 6


def test_one_read_is_under_way_where_one_is_asked_for(world: ChainWorld) -> None:
    store = FarStore(world.folder)
    read(world, store, 1)
    assert store.most == 1


def test_a_local_disk_has_few_readers() -> None:
    local, far = LocalStore(Path("/x")), FarStore(Path("/x"))
    assert (reads_at_once(local), reads_at_once(local, 1), reads_at_once(far, 40)) == (DISK_READERS, 1, 40)


def test_one_damaged_block_among_many_reads_is_named(world: ChainWorld) -> None:
    for file in world.live:
        path, name = world.folder / file.stored.path, file.stored.path
        before = path.read_bytes()
        path.write_bytes(before[:4100] + bytes([before[4100] ^ 1]) + before[4101:])
        with pytest.raises(CorruptState, match=rf"table users: .*{Path(name).name} block 0 \(section ids"):
            read(world, FarStore(world.folder), 16)
        path.write_bytes(before)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ett-checkpoint-io")]
    assert not threads


class AskedStore(LocalStore):
    """Keeps the threads that asked it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asking: set[threading.Thread] = set()

    def read(self, name: str) -> bytes:
        self.asking.add(threading.current_thread())
        return super().read(name)

    @contextmanager
    def open(self, name: str) -> Iterator[ObjectReader]:  # type: ignore[override]
        self.asking.add(threading.current_thread())
        with super().open(name) as reader:
            yield reader


def test_no_read_of_a_restore_keeps_a_program_that_ends(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1])
    store = AskedStore(tmp_path)
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), store=store)
    rank.checkpointer.restore()
    others = store.asking - {threading.current_thread()}
    assert len(others) > 1 and not any(map(keeps_a_program, others))


def test_a_file_that_goes_is_named(world: ChainWorld) -> None:
    lost = world.live[0].stored.path
    (world.folder / lost).unlink()
    with pytest.raises(CorruptState, match=f"table users: {lost} is missing"):
        read(world, FarStore(world.folder), 16)


@contextmanager
def bucket(world: ChainWorld) -> Iterator[tuple[S3Store, FaultProxy]]:
    with folder_bucket(world.folder) as port:
        proxy = FaultProxy(port)
        try:
            yield S3Store("s3://bench", policy=QUICK, options=s3_options(proxy.url)), proxy
        finally:
            proxy.close()


@pytest.mark.slow
def test_connections_that_die_midway_are_tried_again(world: ChainWorld) -> None:
    faults: list[Fault] = ["torn answer", "reset", "unavailable"]  # of each object: a read is tried once more than that
    seen: Counter[str] = Counter()

    def plan(request: Request) -> Fault | None:
        seen[request.path] += request.method == "GET"
        at = seen[request.path] - 1
        return faults[at] if request.method == "GET" and at < len(faults) else None

    with bucket(world) as (store, proxy):
        proxy.plan = plan
        assert read(world, store, 12)[0] == world.rows
    assert len(seen) == len(world.live) and min(seen.values()) > len(faults)


@pytest.mark.slow
def test_a_store_that_never_answers_whole_is_no_damage(world: ChainWorld) -> None:
    def plan(request: Request) -> Fault | None:
        return "torn answer" if request.method == "GET" else None

    with bucket(world) as (store, proxy):
        proxy.plan = plan
        with pytest.raises(Unreachable, match="no good answer in 4 attempts"):
            read(world, store, 8)


@pytest.mark.slow
def test_an_object_that_is_gone_is_named(world: ChainWorld) -> None:
    lost = world.live[-1].stored.path
    (world.folder / lost).unlink()
    with bucket(world) as (store, _), pytest.raises(CorruptState, match=f"{lost} is missing"):
        read(world, store, 8)
