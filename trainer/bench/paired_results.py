"""The file of a campaign: a line of JSON for each thing that is done; a campaign that was killed goes on from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ett.errors import ConfigError, CorruptState

SCHEMA = "ett.bench.paired/v1"
Row = dict[str, Any]


class ResultsFile:
    """Rows by their keys. A row is written whole with one write and is on the disk when `add` returns.

    Args:
        path: is made where it is not there; None keeps rows in memory alone.
        origin: what all rows of one file have in common.
    Raises:
        ConfigError: the file was begun with another origin.
        CorruptState: a line before the last one is no row.
    """

    def __init__(self, path: Path | None, origin: Mapping[str, Any]) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        if path is None:
            return
        head = _line({"schema": SCHEMA, "origin": dict(origin)})
        begun, num_whole = _read(path)
        if begun:
            _check(path, begun[0], origin)
            self.rows = {row["key"]: row for row in begun[1:]}
        elif path.exists() and not head.startswith(path.read_bytes()):
            raise _foreign(path)
        # A line that a kill cut short is done again.
        _write(path, b"" if begun else head, keep=num_whole)

    def add(self, key: str, row: Mapping[str, Any]) -> Row:
        """Keep a row and return it."""
        kept = self.rows[key] = {"key": key, **row}
        if self._path is not None:
            _write(self._path, _line(kept))
        return kept


def _read(path: Path) -> tuple[list[Row], int]:
    """Return the rows of the whole lines, and how many bytes these are."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    rows: list[Row] = []
    for number, line in enumerate(whole, start=1):
        row = _row(line)
        if row is None or (number > 1 and "key" not in row):
            raise CorruptState(
                f"line {number} of {path} is no row: {line[:80]!r}",
                expected="a file that `ett bench ett --resume` wrote",
                do="begin another file",
            )
        rows.append(row)
    return rows, sum(map(len, whole))


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _check(path: Path, head: Row, origin: Mapping[str, Any]) -> None:
    if head.get("schema") != SCHEMA:
        raise _foreign(path)
    theirs = head.get("origin", {})
    differing = sorted(name for name in {*theirs, *origin} if theirs.get(name) != origin.get(name))
    if differing:
        name = differing[0]
        raise ConfigError(
            f"{path} was begun with {name} {theirs.get(name)!r}, this is {name} {origin.get(name)!r}",
            expected="one campaign a file: legs of two would be no pairs",
            do="go on as it was begun, or name another file",
        )


def _foreign(path: Path) -> CorruptState:
    return CorruptState(
        f"{path} is no file of a campaign", expected=f"schema {SCHEMA} in its first line", do="name another file"
    )


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True).encode() + b"\n"


def _write(path: Path, line: bytes, *, keep: int | None = None) -> None:
    """Append a line, after the first `keep` bytes of the file where that is given."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if keep is not None:
            os.ftruncate(fd, keep)
        os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)
