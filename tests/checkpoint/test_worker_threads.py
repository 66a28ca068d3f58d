"""Jobs are done once each, results keep their order, and the first failure is raised when nothing runs any more."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from checkpoint_world import keeps_a_program

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.worker_threads import (
    MOST_THREADS,
    NUM_CORES,
    Parts,
    _Thread,
    beside,
    in_pipeline,
    in_threads,
    one_ahead,
)


def test_no_thread_outlives_whoever_waits_for_it() -> None:
    before = set(threading.enumerate())
    in_threads(range(5), lambda job: job, 3)
    ahead = one_ahead(iter(range(5)))
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert not set(threading.enumerate()) - before  # threads that a test before this one left may end


def test_no_thread_keeps_a_program_that_ends() -> None:
    """A store that hangs holds the thread that asks it, and nobody else."""
    used: list[threading.Thread] = []

    def note(job: int) -> int:
        used.append(threading.current_thread())
        return job

    in_threads(range(3), note, 2)
    in_pipeline(range(3), note, note, 2)
    with beside(lambda: note(0), list) as result:
        assert result() == 0
    assert len(used) == 3 + 6 + 1 and not any(map(keeps_a_program, used))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_jobs(threads: int) -> None:
    assert in_threads(range(100), lambda job: job * job, threads) == [job * job for job in range(100)]


def test_jobs_run_beside_each_other() -> None:
    both = threading.Barrier(2, timeout=300)
    in_threads(range(2), lambda job: both.wait(), 2)


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_failure_is_raised_once_the_other_jobs_have_ended(error: BaseException) -> None:
    begun, ended = threading.Barrier(2, timeout=300), []

    def work(job: int) -> None:
        begun.wait()
        if job == 0:
            raise error
        ended.append(job)

    with pytest.raises(type(error)):
        in_threads(range(2), work, 2)
    assert ended == [1]


def test_after_a_failure_no_job_begins() -> None:
    begun = []

    def work(job: int) -> None:
        begun.append(job)
        raise ValueError

    with pytest.raises(ValueError):
        in_threads(range(10), work, 1)
    assert begun == [0]


def test_a_list_of_jobs_that_fails_is_a_failure() -> None:
    def jobs() -> Iterator[int]:
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        in_threads(jobs(), lambda job: job, 3)


def is_in(thread: int, function: Callable[..., object]) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


Run = Callable[[Iterator[int], Callable[[int], int]], object]


@pytest.mark.parametrize(
    "run",
    [
        lambda jobs, work: in_threads(jobs, work, 2),
        lambda jobs, work: in_pipeline(jobs, work, lambda item: item, 2),
        lambda jobs, work: in_pipeline(jobs, lambda job: job, work, 2),
    ],
)
def test_an_interrupted_wait_has_no_more_jobs_begun(run: Run) -> None:
    before, main = set(threading.enumerate()), threading.main_thread().ident
    assert main is not None and threading.current_thread() is threading.main_thread()
    plenty, begun, told = 10_000_000, 0, threading.Event()

    def jobs() -> Iterator[int]:
        nonlocal begun
        for begun in range(plenty):  # noqa: UP028  begun is read outside
            yield begun

    def work(job: int) -> int:
        # Again and again: one that comes just before a lock is waited for is heard when the next does.
        if job % 1000 == 101 and not told.is_set() and is_in(main, _Thread.wait):
            signal.pthread_kill(main, signal.SIGINT)
        return job

    def interrupt(number: int, frame: object) -> None:
        if not told.is_set():
            told.set()
            raise KeyboardInterrupt

    kept = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(jobs(), work)
    finally:
        signal.signal(signal.SIGINT, kept)
    assert begun < plenty - 1
    assert not set(threading.enumerate()) - before


def test_a_pipeline_whose_workers_cannot_be_started_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before, begun, start = set(threading.enumerate()), 0, threading.Thread.start

    def started(thread: threading.Thread) -> None:
        nonlocal begun
        begun += 1
        if begun > 40:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with pytest.raises(RuntimeError, match="start new thread"):
        in_pipeline(range(1000), lambda job: job, lambda item: item, 40)
    monkeypatch.undo()
    assert not set(threading.enumerate()) - before


def test_what_is_done_beside_is_raised_where_it_is_asked_for() -> None:
    def fail() -> None:
        raise OSError("full")

    before = set(threading.enumerate())
    with beside(fail, list) as result, pytest.raises(OSError, match="full"):
        result()
    assert not set(threading.enumerate()) - before


def test_ctrl_c_ends_what_is_done_beside_early() -> None:
    is_over = threading.Event()
    with pytest.raises(KeyboardInterrupt), beside(lambda: is_over.wait(300), is_over.set):
        raise KeyboardInterrupt


Parted = tuple[int, ...]  # how many parts there are at each level below, and then a number


def parted(job: Parted) -> int | Parts[Parted]:
    *deeper, last = job
    return Parts([(*deeper[1:], last + 10**n) for n in range(deeper[0])]) if deeper else last


@pytest.mark.parametrize("readers", [1, 3, 17])
def test_all_that_is_read_is_worked_on_once(readers: int) -> None:
    jobs: list[Parted] = [(0,), (3, 100), (0, 7), (4, 2, 5), (2, 0, 1)]
    found = in_pipeline(jobs, parted, lambda item: item * item, readers)
    parts = [100 + 10**n for n in range(3)] + [5 + 10**n + 10**m for n in range(4) for m in range(2)]
    assert sorted(found) == sorted(item * item for item in [0, *parts])


def test_parts_of_one_job_are_read_beside_each_other() -> None:
    every = threading.Barrier(4, timeout=300)

    def read(job: int) -> int | Parts[int]:
        if job == 0:
            return Parts([1, 2, 3, 4])
        every.wait()
        return job

    assert sorted(in_pipeline([0], read, lambda item: item, 4)) == [1, 2, 3, 4]


def test_reading_goes_on_while_others_work() -> None:
    both = threading.Barrier(2, timeout=300)

    def read(job: int) -> int:
        if job:
            both.wait()
        return job

    in_pipeline([0, 1], read, lambda item: both.wait() if item == 0 else None, 1)


def test_no_more_is_read_than_there_are_threads_for() -> None:
    alive, most, lock = 0, 0, threading.Lock()

    def count(change: int) -> None:
        nonlocal alive, most
        with lock:
            alive += change
            most = max(most, alive)

    def read(job: int) -> int | Parts[int]:
        if job < 0:
            return Parts(list(range(20)))
        count(1)
        return job

    in_pipeline([-1] * 20, read, lambda item: count(-1), 4)
    assert alive == 0
    assert most <= 4 + 2 * MOST_THREADS + 1


@pytest.mark.parametrize("is_reader", [True, False])
@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_failure_in_a_pipeline_is_raised_once_nothing_runs(is_reader: bool, error: BaseException) -> None:
    begun = []

    def read(job: int) -> int | Parts[int]:
        begun.append(job)
        if is_reader and job:
            raise error
        return Parts([1, 2]) if job == 0 else job

    def work(item: int) -> None:
        if not is_reader:
            raise error

    before = set(threading.enumerate())
    with pytest.raises(type(error)):
        in_pipeline(range(1000), read, work, 3)
    assert not set(threading.enumerate()) - before
    assert len(begun) < 1000


def test_readers_that_wait_for_room_end_after_a_failure() -> None:
    """More of them than there is room for: each that ends without an item leaves the room to the next."""
    readers, failures = 16, []
    num_read, changed = 0, threading.Condition()
    most = readers + min(MOST_THREADS, NUM_CORES) + 1

    def read(job: int) -> int:
        nonlocal num_read
        with changed:
            num_read += 1
            changed.notify_all()
        return job

    def fail(item: int) -> None:
        with changed:
            assert changed.wait_for(lambda: num_read == most, 300)
        raise OSError("damaged")

    def run() -> None:
        with pytest.raises(OSError, match="damaged") as raised:
            in_pipeline(range(1000), read, fail, readers)
        failures.append(raised.value)

    waiting = threading.Thread(target=run, daemon=True)
    waiting.start()
    waiting.join(60)
    assert len(failures) == 1


def test_the_next_item_is_made_while_one_is_in_use() -> None:
    both = threading.Barrier(2, timeout=300)

    def items() -> Iterator[int]:
        yield 0
        both.wait()
        yield 1

    found = []
    for item in one_ahead(items()):
        if item == 0:
            both.wait()
        found.append(item)
    assert found == [0, 1]


def test_an_item_that_cannot_be_made_is_raised_in_its_place() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise OSError("no more")

    ahead = one_ahead(items())
    assert next(ahead) == 0
    with pytest.raises(OSError, match="no more"):
        next(ahead)


def test_a_buffer_is_used_again_and_lent_to_one_at_a_time() -> None:
    pool = BufferPool()
    with pool.taken(10_000) as first, pool.taken(10_000) as second:
        assert first.__array_interface__["data"][0] % 4096 == second.__array_interface__["data"][0] % 4096 == 0
        first[:], second[:] = 1, 2
        assert first.sum() == 10_000
        places = {buffer.__array_interface__["data"][0] for buffer in (first, second)}
    with pool.taken(500) as third:
        assert third.__array_interface__["data"][0] in places
        assert len(third) == 500
    with pool.taken(5 << 20) as larger:
        assert len(larger) == 5 << 20
