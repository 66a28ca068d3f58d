from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from ett.trainer.data.read_ahead import read_ahead


def numbers(end: int, seen: list[int] | None = None) -> Generator[int, None, None]:
    for number in range(end):
        if seen is not None:
            seen.append(number)
        yield number


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ett-read")]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("depth", [0, 1, 7])
def test_results_come_in_the_order_of_their_tasks(threads: int, depth: int) -> None:
    results = list(read_ahead(numbers(50), lambda n: n * n, threads=threads, depth=depth))
    assert results == [(n, n * n) for n in range(50)]
    assert not reading_threads()


def test_no_more_is_taken_ahead_than_the_depth() -> None:
    seen: list[int] = []
    begun = [threading.Semaphore(0) for _ in range(9)]
    results = read_ahead(numbers(9, seen), lambda n: begun[n].release(), threads=1, depth=3)
    next(results)
    for ready in begun[:4]:
        ready.acquire()
    assert len(seen) == 4  # one was taken, three are ready
    results.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_rises_where_its_result_would_have_come(depth: int) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = read_ahead(numbers(9), work, threads=2, depth=depth)
    assert [next(results)[1] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert not reading_threads()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_of_the_tasks_rises_after_the_results_before_it(depth: int) -> None:
    def tasks() -> Generator[int, None, None]:
        yield 0
        raise ValueError("no second one")

    results = read_ahead(tasks(), str, threads=1, depth=depth)
    assert next(results) == (0, "0")
    with pytest.raises(ValueError, match="no second one"):
        next(results)
    assert not reading_threads()


@pytest.mark.parametrize("depth", [0, 2])
def test_leaving_early_closes_the_tasks_and_ends_the_threads(depth: int) -> None:
    closed: list[str] = []

    def tasks() -> Generator[int, None, None]:
        try:
            yield from numbers(100)
        finally:
            closed.append(threading.current_thread().name)

    results = read_ahead(tasks(), str, threads=2, depth=depth)
    next(results)
    results.close()
    assert len(closed) == 1
    assert not reading_threads()
