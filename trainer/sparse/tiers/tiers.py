"""What a rank's tables lie in, opened once a life from the recipe."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from ett.checkpoint.table import StateSpec
from ett.os_failure import os_failure
from ett.trainer.config import SparseConfig
from ett.trainer.sparse.tiers.row_store import RowStore
from ett.trainer.sparse.tiers.ssd_log import SsdLog
from ett.trainer.sparse.tiers.table_storage import HostStorage, TableStorage, tiered_storage


class Tiers(Protocol):
    def storage(self, table: str, dim: int, states: Sequence[StateSpec]) -> TableStorage:
        """Return an empty storage for a table's rows on this rank."""


class InMemory:
    """Every row in the host's memory."""

    def storage(self, table: str, dim: int, states: Sequence[StateSpec]) -> TableStorage:
        return HostStorage(dim, states)


IN_MEMORY: Tiers = InMemory()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Whose rows they are: no other rank or life ever reads or writes where this one does."""

    job_dir: Path
    rank: int
    world_size: int


@contextmanager
def open_tiers(config: SparseConfig, place: RankPlace) -> Iterator[Tiers]:
    """Give the tiers that a recipe names; at the end, and at the next start of this rank, what they hold is removed."""
    # A job's id alone may stand for another job on another host.
    job = f"{place.job_dir.name}-{hashlib.sha256(str(place.job_dir).encode()).hexdigest()[:12]}"
    match config.tier:
        case "host":
            yield IN_MEMORY
        case "ssd":
            parent = Path(config.tier_dir).expanduser() if config.tier_dir else place.job_dir / "tiers"
            folder = _new_life_folder(parent / job, place)
            try:
                yield _Cached(config, lambda table, part, size: SsdLog(table, size, folder / f"{table}.{part}"))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        case "redis":
            # Here, as no other tier needs it: every rank's start would pay for it.
            from ett.trainer.sparse.tiers.redis_rows import RedisConnection, RedisRows, RedisServer, RedisSpace

            server = RedisServer(url=config.redis_url, timeout_s=config.redis_timeout_s, attempts=config.redis_attempts)
            connection = RedisConnection(server, RedisSpace(job=job, rank=place.rank, world_size=place.world_size))
            tiers = _Cached(config, lambda table, part, size: RedisRows(table, size, connection, part))
            yield tiers
            # Not after an error, which may be the server's: then the next life removes what is left.
            tiers.close()
            connection.close()


class _Cached:
    def __init__(self, config: SparseConfig, open_store: Callable[[str, str, int], RowStore]) -> None:
        self._config, self._open_store = config, open_store
        self._storages: list[TableStorage] = []

    def storage(self, table: str, dim: int, states: Sequence[StateSpec]) -> TableStorage:
        storage = tiered_storage(
            table,
            dim,
            states,
            lambda part, row_bytes: self._open_store(table, part, row_bytes),
            cache_rows=self._config.cache_rows,
            state_cache_rows=self._config.state_cache_rows or self._config.cache_rows,
        )
        self._storages.append(storage)
        return storage

    def close(self) -> None:
        for storage in self._storages:
            storage.close()


def _new_life_folder(parent: Path, place: RankPlace) -> Path:
    """Make a folder for this life of the rank and remove those of earlier ones."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.iterdir():
            # A job that goes on with fewer ranks leaves numbers that nobody has any more: they are shared out.
            if int(left.name.split("-")[0]) % place.world_size == place.rank:
                shutil.rmtree(left, ignore_errors=True)
        folder = parent / f"{place.rank}-{uuid4().hex}"
        folder.mkdir()
    except OSError as err:
        raise os_failure(err, parent, elsewhere="sparse.tier_dir") from err
    return folder
