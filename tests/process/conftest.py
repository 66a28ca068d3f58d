"""Makes `wait` and `launched_job` importable for the tests beside them, and gives each test a job and its mark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launched_job import LaunchedJob, NewJob


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("process")  # `make check` does not even look into this folder


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LaunchedJob]:
    """A job of this test alone; nothing of it outlives the test, even a failing one."""
    launched = LaunchedJob(tmp_path)
    yield launched
    launched.end()


@pytest.fixture
def cold_job(tmp_path: Path) -> Iterator[LaunchedJob]:
    """A job as `job`, whose launches are the command itself."""
    launched = LaunchedJob(tmp_path, is_warm=False)
    yield launched
    launched.end()


@pytest.fixture
def new_job(tmp_path: Path) -> Iterator[NewJob]:
    """Return a function that gives one more job in a folder of its own, for a test that may take several."""
    made: list[LaunchedJob] = []

    def another() -> LaunchedJob:
        folder = tmp_path / f"job{len(made)}"
        folder.mkdir()
        made.append(LaunchedJob(folder))
        return made[-1]

    yield another
    for launched in made:
        launched.end()
