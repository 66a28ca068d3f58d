"""Stores for the tests of this folder: the lower tiers, and caches over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from ett.checkpoint.table import StateSpec
from ett.trainer.sparse.tiers.host_rows import HostRows
from ett.trainer.sparse.tiers.redis_rows import RedisConnection, RedisRows, RedisServer, RedisSpace
from ett.trainer.sparse.tiers.row_cache import RowCache
from ett.trainer.sparse.tiers.row_layout import RowLayout
from ett.trainer.sparse.tiers.row_store import RowStore
from ett.trainer.sparse.tiers.ssd_log import SsdLog

OpenStore = Callable[[str, int], RowStore]  # part, row_bytes
STORES = ["host", "ssd", "cache over host", "cache over ssd", "cache over cache over ssd"]
REDIS_STORES = [pytest.param(name, marks=pytest.mark.process) for name in ("redis", "cache over redis")]
CAPACITIES = (16, 8)  # of the lower and of the upper cache


def host(part: str, row_bytes: int) -> RowStore:
    return HostRows(row_bytes)


def ssd(folder: Path) -> OpenStore:
    return lambda part, row_bytes: SsdLog("t", row_bytes, folder / f"{part}-{uuid4().hex}")


def redis(url: str) -> OpenStore:
    connection = connect(url)
    return lambda part, row_bytes: RedisRows("t", row_bytes, connection, part)


def cached(below: OpenStore, capacity: int) -> OpenStore:
    def open_cache(part: str, row_bytes: int) -> RowStore:
        layout = RowLayout([StateSpec(name="bytes", dtype="uint8", width=row_bytes)])
        return RowCache("t", layout, below(part, row_bytes), capacity, "sparse.cache_rows")

    return open_cache


def connect(
    url: str, *, job: str = "j", rank: int = 0, world_size: int = 1, attempts: int = 2, timeout_s: float = 60.0
) -> RedisConnection:
    server = RedisServer(url=url, timeout_s=timeout_s, attempts=attempts)
    return RedisConnection(server, RedisSpace(job=job, rank=rank, world_size=world_size))
