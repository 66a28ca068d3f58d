"""Rows in Redis, for tables beyond the memory and disks of the training hosts.

A key is `ett:<space>:<table>:` and the id's 8 bytes; its value a check word and the row, little-endian. Which ids there
are is known in this process (16 to 20 bytes a row), so a key that the server has dropped is an error and never a fresh
row. The space is new in every life of a rank: a process that should be dead writes where nobody reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from ett.errors import AccessDenied, ConfigError, CorruptState, EttError, Unreachable
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.id_index import id_index
from ett.trainer.sparse.tiers.row_check import CHECK_BYTES, RowCheck
from ett.trainer.sparse.tiers.row_store import Bytes, Mask

_BATCH_BYTES = 1 << 18  # of one MGET or MSET: others' commands get their turn between two
_BATCHES_IN_FLIGHT = 16  # one round trip; the reply is held in memory at once
_SPACES = "ett:spaces:"


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisServer:
    url: str  # redis://[user:password@]host:port/db, rediss:// or unix://
    timeout_s: float  # of connecting and of each reply
    attempts: int  # of one round trip, the first included


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisSpace:
    """Whose rows they are; what earlier lives left behind is removed by the rank that takes their place."""

    job: str
    rank: int
    world_size: int


class RedisConnection:
    """One connection a rank, for all its tables; failures are errors that name table and address."""

    def __init__(self, server: RedisServer, space: RedisSpace) -> None:
        """Connect, and remove what earlier lives of this rank left.

        Raises: Unreachable: nobody answers. AccessDenied: the server wants other credentials. ConfigError: the client
            is not installed, or the URL is none.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as err:
            raise ConfigError(
                "sparse.tier is 'redis', and its client is not installed", do="pip install 'ett[redis]'"
            ) from err
        self._errors = redis.exceptions
        try:
            self._client: Any = redis.Redis.from_url(
                server.url,
                socket_timeout=server.timeout_s,
                socket_connect_timeout=server.timeout_s,
                retry=Retry(NoBackoff(), 0),  # tenacity retries whole round trips, and counts them
            )
        except ValueError as err:
            raise ConfigError(f"sparse.redis_url is no URL of a Redis: {err}", do="redis://HOST:PORT/DB") from err
        told = self._client.connection_pool.connection_kwargs
        self.address = str(told.get("path") or f"{told.get('host', 'localhost')}:{told.get('port', 6379)}")
        self._retrying = Retrying(
            stop=stop_after_attempt(server.attempts),
            wait=wait_exponential(multiplier=0.05, max=server.timeout_s),
            retry=retry_if_exception_type((redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)),
            reraise=True,
        )
        self._attempts = server.attempts
        self._register = f"{_SPACES}{space.job}"
        self.space = f"{space.job}:{space.rank}:{uuid4().hex}"
        self._remove_earlier(space)

    def pipelined(self, table: str, fill: Callable[[Any], object]) -> list[Any]:
        """Send the commands that `fill` puts in a pipeline, in one round trip, and return the replies.

        Raises: Unreachable: no answer after all attempts, or the server refuses. AccessDenied.
        """

        def round_trip() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False)
            fill(pipeline)
            replies: list[Any] = pipeline.execute()
            return replies

        try:
            return self._retrying(round_trip)
        except self._errors.RedisError as err:
            raise self._failure(table, err) from err

    def unlink(self, table: str, keys: list[bytes]) -> None:
        """Remove keys; each call is one round trip."""
        if keys:
            self.pipelined(table, lambda pipeline: pipeline.unlink(*keys))

    def close(self) -> None:
        """Strike this life out of the register and hang up."""
        self.pipelined("", lambda pipeline: pipeline.srem(self._register, self.space))
        self._client.close()

    def _remove_earlier(self, space: RedisSpace) -> None:
        (known, _) = self.pipelined("", lambda p: (p.smembers(self._register), p.sadd(self._register, self.space)))
        for name in known:
            # A job that goes on with fewer ranks leaves numbers that nobody has any more: they are shared out.
            if int(name.decode().rsplit(":", 2)[1]) % space.world_size != space.rank:
                continue
            cursor = -1
            while cursor:
                ((cursor, keys),) = self.pipelined("", _scan(max(cursor, 0), f"ett:{_glob(name.decode())}:*"))
                self.unlink("", keys)
            self.pipelined("", _strike(self._register, name))

    def _failure(self, table: str, err: Exception) -> EttError:
        where = f"table {table}: " if table else ""
        fact = f"{where}Redis at {self.address}: {str(err) or type(err).__name__}"
        errors = self._errors
        if isinstance(err, errors.AuthenticationError | errors.NoPermissionError):
            return AccessDenied(fact, do="correct the user and password in sparse.redis_url")
        if isinstance(err, errors.OutOfMemoryError):
            return Unreachable(fact, do="raise its maxmemory, or use more ranks and servers", code="S002")
        if isinstance(err, errors.ConnectionError | errors.TimeoutError):
            fact += f" (attempts: {self._attempts})"
        return Unreachable(fact, do="check the server; a restart goes on from the newest checkpoint")


class RedisRows:
    """A `RowStore`."""

    def __init__(self, table: str, row_bytes: int, connection: RedisConnection, part: str) -> None:
        """Start empty.

        Args: part: what of the table it is, "weights" or "states".
        """
        self.row_bytes = row_bytes
        self._table, self._connection = table, connection
        self._prefix = f"ett:{connection.space}:{table}:{part}:".encode()
        self._check = RowCheck(f"{table}|{part}", row_bytes)
        self._value_bytes = CHECK_BYTES + row_bytes
        self._batch = max(1, _BATCH_BYTES // (self._value_bytes + len(self._prefix) + 8))
        self._index = id_index()

    def __len__(self) -> int:
        return len(self._index)

    def read(self, ids: Ids, out: Bytes) -> Mask:
        known = self.contains(ids)
        at = np.flatnonzero(known)
        for window in _windows(len(at), self._batch):
            batches = [ids[at[part]] for part in window]
            replies = self._connection.pipelined(self._table, _mget([self._keys(batch) for batch in batches]))
            for batch, part, values in zip(batches, window, replies, strict=True):
                out[at[part]] = self._rows_of(batch, values)
        return known

    def write(self, ids: Ids, rows: Bytes) -> None:
        for window in _windows(len(ids), self._batch):
            pairs = [self._pairs(ids[part], rows[part]) for part in window]
            self._connection.pipelined(self._table, _mset(pairs))
            written = ids[window[0].start : window[-1].stop]
            self._index.insert(written[~self.contains(written)])

    def free(self, ids: Ids) -> None:
        ids = ids[self.contains(ids)]
        for window in _windows(len(ids), self._batch):
            for part in window:
                self._connection.unlink(self._table, self._keys(ids[part]))
        self._index.erase(ids)

    def contains(self, ids: Ids) -> Mask:
        return self._index.find(ids) >= 0

    def ids(self) -> Ids:
        return np.sort(self._index.items()[0])

    def clear(self) -> None:
        self.free(self.ids())

    def close(self) -> None:
        self.clear()

    def _keys(self, ids: Ids) -> list[bytes]:
        packed = ids.tobytes()
        return [self._prefix + packed[at : at + 8] for at in range(0, len(packed), 8)]

    def _pairs(self, ids: Ids, rows: Bytes) -> dict[bytes, bytes]:
        values = np.empty((len(ids), self._value_bytes), np.uint8)
        values[:, :CHECK_BYTES] = self._check.words(ids, _NOWHERE, rows)[:, None].view(np.uint8)
        values[:, CHECK_BYTES:] = rows
        packed, size = values.tobytes(), self._value_bytes
        keys = self._keys(ids)
        return {key: packed[at : at + size] for key, at in zip(keys, range(0, len(packed), size), strict=True)}

    def _rows_of(self, ids: Ids, values: list[bytes | None]) -> Bytes:
        for row_id, value in zip(ids.tolist(), values, strict=True):
            if value is None:
                raise self._lost(f"has lost the row of id {row_id}")
            if len(value) != self._value_bytes:
                raise self._lost(f"holds {len(value)} bytes for id {row_id}, not {self._value_bytes}")
        packed = np.frombuffer(b"".join(values), np.uint8).reshape(len(ids), self._value_bytes)  # type: ignore[arg-type]
        rows = packed[:, CHECK_BYTES:]
        words = np.ascontiguousarray(packed[:, :CHECK_BYTES]).view(np.uint64)[:, 0]
        wrong = words != self._check.words(ids, _NOWHERE, rows)
        if wrong.any():
            raise self._lost(f"holds another row for id {ids[wrong][0]} than was written")
        return rows

    def _lost(self, fact: str) -> CorruptState:
        return CorruptState(
            f"table {self._table}: Redis at {self._connection.address} {fact}",
            expected="a server that drops no key: maxmemory-policy noeviction, and not restarted empty",
            do="correct that; a restart fills it from the newest checkpoint",
        )


_NOWHERE = np.zeros(1, np.int64)


def _windows(num_rows: int, batch: int) -> Iterator[list[slice]]:
    """Cut num_rows into batches, and those into round trips."""
    parts = (slice(at, min(num_rows, at + batch)) for at in range(0, num_rows, batch))
    while window := list(itertools.islice(parts, _BATCHES_IN_FLIGHT)):
        yield window


def _mget(batches: list[list[bytes]]) -> Callable[[Any], None]:
    def fill(pipeline: Any) -> None:
        for keys in batches:
            pipeline.mget(keys)

    return fill


def _mset(batches: list[dict[bytes, bytes]]) -> Callable[[Any], None]:
    def fill(pipeline: Any) -> None:
        for pairs in batches:
            pipeline.mset(pairs)

    return fill


def _scan(cursor: int, pattern: str) -> Callable[[Any], object]:
    return lambda pipeline: pipeline.scan(cursor, match=pattern, count=10_000)


def _glob(text: str) -> str:
    """Escape what SCAN's patterns give a meaning to."""
    return "".join(f"\\{char}" if char in "*?[]\\" else char for char in text)


def _strike(register: str, name: bytes) -> Callable[[Any], object]:
    return lambda pipeline: pipeline.srem(register, name)
