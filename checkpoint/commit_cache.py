"""Commits that were read or made before: a record never changes, and to parse a long chain takes longer than to save.

Whoever reads a folder again and again still reads every record, and knows by its hash whether it is as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import xxhash

from ett.checkpoint.commit import Commit
from ett.checkpoint.table_segments import TableFile


class CommitCache:
    """By any thread; commits share what they list alike, so that many of a chain take little more memory than one."""

    def __init__(self) -> None:
        self._commits: dict[str, tuple[str, Commit]] = {}  # name -> hash of the record
        self._newest: Commit | None = None

    def get(self, name: str, record: bytes) -> Commit | None:
        known_hash, commit = self._commits.get(name, ("", None))
        return commit if commit is not None and known_hash == xxhash.xxh3_128_hexdigest(record) else None

    def add(self, name: str, record: bytes, commit: Commit) -> Commit:
        """Keep a commit that was parsed from, or made, these bytes; return it."""
        commit = self._newest = _sharing(commit, self._newest)
        self._commits[name] = (xxhash.xxh3_128_hexdigest(record), commit)
        return commit

    def keep_only(self, names: Collection[str]) -> None:
        """Forget the others, but for those after the newest of them: it may just have been made."""
        newest = max(names, default="")
        for name in list(self._commits):
            if name not in names and name <= newest:
                self._commits.pop(name, None)


def _sharing(commit: Commit, earlier: Commit | None) -> Commit:
    """Return a commit whose files are the same objects as those of an earlier one, where they are equal."""
    known = {file.stored.path: file for table in earlier.tables for file in table.files} if earlier else {}

    def shared(file: TableFile) -> TableFile:
        found = known.get(file.stored.path)
        return found if found is not None and found == file else file

    tables = tuple(replace(table, files=tuple(map(shared, table.files))) for table in commit.tables)
    return replace(commit, tables=tables)
