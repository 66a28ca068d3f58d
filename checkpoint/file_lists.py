"""Where a record would be large, its tables' files are listed in files of their own, which it names by their hash.

A commit lists every live file, so that a chain of a large table makes a long list; every start of the job reads the
records that there are, and every save makes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import xxhash

from ett.checkpoint.canonical_json import Json, seal
from ett.checkpoint.commit import Commit
from ett.checkpoint.segment import StoredFile

RECORD_BYTES = 1 << 20  # most of a record that lists its files itself
LIST_FILES = 2000  # in one list: about 900 KB


def split(commit: Commit) -> tuple[Commit, bytes, dict[str, bytes]]:
    """Return a commit as it is stored, its record, and its lists, path -> content, which are made before the record."""
    commit = replace(commit, lists=())
    record = commit.to_bytes()
    if len(record) <= RECORD_BYTES:
        return commit, record, {}
    documents = [seal({"document": "files", "tables": tables}) for tables in _pieces(commit)]
    lists = {f"m/{commit.ckpt_uuid}/files-{xxhash.xxh3_128_hexdigest(data)}.json": data for data in documents}
    stored = tuple(
        StoredFile(path=path, bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data)) for path, data in lists.items()
    )
    commit = replace(commit, lists=stored)
    return commit, commit.to_bytes(with_files=False), lists


def _pieces(commit: Commit) -> Iterator[list[Json]]:
    """Yield `[{id, files}]` of some files at a time, in the order of the tables and of their files."""
    piece: list[dict[str, Any]] = []
    room = LIST_FILES
    for table in commit.tables:
        files = [file.as_json(table.spec.dim) for file in table.files]
        while files:
            piece.append({"id": table.spec.table_id, "files": files[:room]})
            files, room = files[room:], room - len(files[:room])
            if not room:
                yield piece
                piece, room = [], LIST_FILES
    if piece:
        yield piece
