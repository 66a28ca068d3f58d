"""Makes `tier_stores` importable here, and gives stores and a Redis."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from redis_process import RedisProcess
from tier_stores import CAPACITIES, OpenStore, cached, host, redis, ssd


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisProcess]]:
    """Start a server with options; it ends with the test."""
    if shutil.which("redis-server") is None:
        pytest.skip("no Redis server is installed: apt-get install redis-server")
    pytest.importorskip("redis", reason="the client is not installed: pip install 'ett[redis]'")
    started: list[RedisProcess] = []

    def start(*options: str) -> RedisProcess:
        started.append(RedisProcess(*options))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """The stores that the test's parameter names, of STORES or REDIS_STORES."""
    *caches, lowest = request.param.split(" over ")
    match lowest:
        case "host":
            opened: OpenStore = host
        case "ssd":
            opened = ssd(tmp_path)
        case _:
            opened = redis(request.getfixturevalue("start_redis")().url)
    for _, capacity in zip(caches, CAPACITIES, strict=False):
        opened = cached(opened, capacity)
    return opened
