"""One SQL for two databases: SQLite in a file, PostgreSQL by URL. Writers take turns.

SQL is written once with `?` for every value; nothing from outside ever becomes part of a statement.
"""

from __future__ import annotations

import shlex
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from ett.errors import AccessDenied, ConfigError, Conflict, CorruptState, EttError, NotFound, Unreachable, UsageError
from ett.store.connection_pool import ConnectionPool
from ett.store.migrations import MIGRATIONS

WRITER_WAIT_S = 30.0
Values = Sequence[object]


class Database(Protocol):
    """What the store needs of a database. Every method is safe from any thread."""

    name: str  # for messages: a path, or a URL without its password
    for_update: str  # what locks the rows that a SELECT returns until the transaction ends

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return what a SELECT gives; never waits for a writer."""

    def run(self, sql: str, values: Values = ()) -> None:
        """Execute one statement of the open transaction."""

    def run_many(self, sql: str, values: Sequence[Values]) -> None: ...

    @contextmanager
    def writing(self, wait_s: float = WRITER_WAIT_S) -> Iterator[None]:
        """A transaction: all of it is kept, or nothing. Raises: Conflict: other writers took longer than wait_s."""

    def close(self) -> None: ...


def open_database(url: str | Path) -> Database:
    """Open the database, made and migrated where needed.

    Raises: Unreachable, AccessDenied, CorruptState (no store of ours, or a newer one), ConfigError (no psycopg).
    """
    text = str(url)
    database: Database
    if text.startswith(("postgresql://", "postgres://")):
        database = PostgresDatabase(text)
    elif "://" in text:
        scheme = text.split("://", maxsplit=1)[0]
        raise UsageError(
            f"a store at {scheme!r}:// is unknown", expected="a path such as .ett/ett.db, or postgresql://…"
        )
    elif text == ":memory:":
        raise UsageError("a store at :memory: would be gone at once", expected="a path such as .ett/ett.db")
    else:
        database = SqliteDatabase(Path(text))
    with ExitStack() as unless_migrated:
        unless_migrated.callback(database.close)
        _migrate(database)
        unless_migrated.pop_all()
    return database


class SqliteDatabase:
    """SQLite in WAL mode: readers never wait, and every commit is on the disk before it returns."""

    for_update = ""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._turn = threading.Lock()
        self._pool: ConnectionPool[sqlite3.Connection] = ConnectionPool(self._connect, lambda c: not c.in_transaction)
        if not path.parent.is_dir():
            raise NotFound(
                f"there is no folder {path.parent} for the store {path.name}",
                expected="a folder that is there: a slip in --store must not become a new store",
                do=f"mkdir -p {shlex.quote(str(path.parent))}, or name another store",
            )
        with self._translated(), self._pool.lent():
            pass  # it can be opened

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        with self._translated(), self._pool.lent() as connection:
            return connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Values = ()) -> None:
        with self._translated(), self._pool.lent() as connection:
            connection.execute(sql, values)

    def run_many(self, sql: str, values: Sequence[Values]) -> None:
        with self._translated(), self._pool.lent() as connection:
            connection.executemany(sql, values)

    @contextmanager
    def writing(self, wait_s: float = WRITER_WAIT_S) -> Iterator[None]:
        begun_s = time.monotonic()
        if not self._turn.acquire(timeout=wait_s):
            raise _busy(self.name, wait_s)
        try:
            with self._pool.held() as connection:
                left_s = max(0.0, wait_s - (time.monotonic() - begun_s))
                with self._translated(wait_s):
                    connection.execute(f"PRAGMA busy_timeout = {int(left_s * 1000)}")
                    connection.execute("BEGIN IMMEDIATE")
                with ExitStack() as unless_done:
                    unless_done.callback(connection.rollback)
                    yield
                    with self._translated(wait_s):
                        connection.commit()
                    unless_done.pop_all()
        finally:
            self._turn.release()

    def close(self) -> None:
        self._pool.close()

    def _connect(self) -> sqlite3.Connection:
        with self._translated():
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            connection.execute(f"PRAGMA busy_timeout = {int(WRITER_WAIT_S * 1000)}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            return connection

    @contextmanager
    def _translated(self, wait_s: float = WRITER_WAIT_S) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as err:
            raise _sqlite_error(err, self.name, wait_s) from err


class PostgresDatabase:
    """PostgreSQL through psycopg (`pip install 'ett[postgres]'`)."""

    for_update = " FOR UPDATE"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as err:
            raise ConfigError(
                "a PostgreSQL store needs psycopg, which is not installed", do="pip install 'ett[postgres]'"
            ) from err
        self._psycopg = psycopg
        self._url = url
        self.name = without_password(url)
        self._pool: ConnectionPool[Any] = ConnectionPool(self._connect, _is_idle)
        with self._translated(), self._pool.lent():
            pass  # it answers

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        with self._translated(), self._pool.lent() as connection:
            return connection.execute(_percent(sql), values).fetchall()  # type: ignore[no-any-return]

    def run(self, sql: str, values: Values = ()) -> None:
        with self._translated(), self._pool.lent() as connection:
            connection.execute(_percent(sql), values)

    def run_many(self, sql: str, values: Sequence[Values]) -> None:
        with self._translated(), self._pool.lent() as connection, connection.cursor() as cursor:
            cursor.executemany(_percent(sql), values)

    @contextmanager
    def writing(self, wait_s: float = WRITER_WAIT_S) -> Iterator[None]:
        with self._translated(), self._pool.held() as connection, connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {max(1, int(wait_s * 1000))}")
            yield

    def close(self) -> None:
        self._pool.close()

    def _connect(self) -> Any:
        return self._psycopg.connect(self._url, autocommit=True, connect_timeout=10)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.errors.LockNotAvailable as err:
            raise _busy(self.name, WRITER_WAIT_S) from err
        except self._psycopg.errors.InsufficientPrivilege as err:
            raise AccessDenied(f"the store {self.name} refused: {_first_line(err)}") from err
        except self._psycopg.OperationalError as err:
            raise Unreachable(
                f"the store {self.name} does not answer: {_first_line(err)}",
                do="check the address and that the server runs, then do it again: nothing is stored twice",
            ) from err


def _is_idle(connection: Any) -> bool:
    """A server that went away leaves a connection that is no use; the next statement asks for another."""
    return not connection.closed and not connection.broken


def without_password(url: str) -> str:
    """Return the URL as it may be shown: a password in it, also one given as a parameter, never leaves the process."""
    parts = urlsplit(url)
    place = parts.netloc
    if "@" in place:
        user, _, host = place.rpartition("@")
        place = f"{user.partition(':')[0]}@{host}"
    query = "&".join(
        item for item in parts.query.split("&") if item and not item.lower().startswith(("password", "sslpass"))
    )
    return urlunsplit((parts.scheme, place, parts.path, query, ""))


def _migrate(database: Database) -> None:
    newest = MIGRATIONS[-1][0]
    known = _version(database)
    if known == newest:
        return
    with database.writing():
        database.run(
            "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY, applied_ns BIGINT NOT NULL)"
        )
        if database.for_update:
            database.run("LOCK TABLE schema_version IN EXCLUSIVE MODE")
        known = _applied(database)  # another process may have been faster
        if known > newest:
            raise CorruptState(
                f"the store {database.name} is of schema version {known}",
                expected=f"at most {newest}, which this ett knows",
                do="use the ett that wrote it, or a newer one",
            )
        kinds = _POSTGRES_KINDS if database.for_update else _SQLITE_KINDS
        for version, statements in MIGRATIONS:
            if version <= known:
                continue
            for statement in statements:
                database.run(statement.format(**kinds))
            database.run("INSERT INTO schema_version VALUES (?, ?)", (version, time.time_ns()))


_SQLITE_KINDS = {"id": "INTEGER PRIMARY KEY", "blob": "BLOB", "name": "TEXT"}
_POSTGRES_KINDS = {
    "id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "blob": "BYTEA",
    "name": 'TEXT COLLATE "C"',
}


def _version(database: Database) -> int:
    if database.for_update:
        known = database.rows(
            "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?", ("schema_version",)
        )
    else:
        known = database.rows(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", ("schema_version",)
        )
    return _applied(database) if known[0][0] else 0


def _applied(database: Database) -> int:
    return int(database.rows("SELECT coalesce(max(version), 0) FROM schema_version")[0][0])


def _percent(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _sqlite_error(err: sqlite3.Error, name: str, wait_s: float) -> EttError:
    code = getattr(err, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _busy(name, wait_s)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptState(
            f"the store {name} is damaged or no SQLite database: {err}",
            do="restore its backup, or move it away and ingest the jobs' folders again: `ett ingest --all`",
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return AccessDenied(f"the store {name} cannot be opened for writing: {err}", do="check its path and its rights")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return Unreachable(f"the disk of the store {name} fails: {err}", do="free space, then do it again", code="S001")
    return CorruptState(f"the store {name} refused a statement: {err}", expected="a store of this ett's schema")


def _busy(name: str, wait_s: float) -> Conflict:
    return Conflict(
        f"another process has been writing to the store {name} for {wait_s:g} s",
        expected="one writer at a time; readers are not held up",
        do="wait for it, then do it again: nothing is stored twice",
    )


def _first_line(err: Exception) -> str:
    return (str(err).strip().splitlines() or [type(err).__name__])[0]
