"""Which file has the newest version of each row: of every id the one with the highest seq, be it a row or a tombstone.

Each row is then read from one file, by whichever thread, and nobody else writes to its place in the table: files may be
read in any order, by many threads, without a lock, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ett.checkpoint.read_plan import Mask
from ett.checkpoint.table_segments import Ids, TableFile, TableSpec
from ett.errors import CorruptState


def twice_in(spec: TableSpec, seq: int, row_id: int) -> CorruptState:
    return CorruptState(
        f"table {spec.name}: two files of commit {seq} have id {row_id}",
        expected="a row or its tombstone in one file of a commit",
        do="restore another commit",
    )


class NewestRows:
    """Where every id that changed since the base stands newest; 12 bytes an id when settled."""

    def __init__(self, spec: TableSpec, files: Sequence[TableFile], owned: Callable[[Ids], Mask]) -> None:
        """Args: owned: returns bool [N], which of ids (int64 [N]) are wanted."""
        self._spec, self._owned = spec, owned
        self._bases = [file for file in files if file.identity.kind == "base"]
        self._files: list[TableFile] = []
        self._parts: list[tuple[int, Ids, int]] = []  # seq, ids, 2 * number of the file + whether they are tombstones

    def add(self, file: TableFile, ids: Ids, tombstones: Ids) -> None:
        overtaking = Spans(base for base in self._bases if base.seq >= file.seq)
        for part, is_gone in ((ids, False), (tombstones, True)):
            self._parts.append((file.seq, part[~overtaking.cover(part)], 2 * len(self._files) + is_gone))
        self._files.append(file)

    def settle(self) -> None:
        parts = sorted(self._parts, key=lambda part: part[0])
        self._parts = []
        ids = np.concatenate([np.empty(0, np.int64), *(ids for _, ids, _ in parts)])
        places = np.repeat(np.array([place for *_, place in parts], np.int32), [len(ids) for _, ids, _ in parts])
        seqs = np.repeat(np.array([seq for seq, *_ in parts], np.int64), [len(ids) for _, ids, _ in parts])
        order = np.argsort(ids, kind="stable")  # equal ids stay in the order of seq
        ids, places, seqs = ids[order], places[order], seqs[order]
        twice = np.flatnonzero((ids[1:] == ids[:-1]) & (seqs[1:] == seqs[:-1]))
        if len(twice):
            raise twice_in(self._spec, int(seqs[twice[0]]), int(ids[twice[0]]))
        is_last = np.ones(len(ids), np.bool_)
        is_last[:-1] = ids[1:] != ids[:-1]
        self._ids, self._places = ids[is_last], places[is_last]

    def wanted(self, file: TableFile) -> Callable[[Ids], Mask]:
        """Return which ids of a file are wanted and stand newest in it."""
        if file.identity.kind == "base":
            newer = Spans(base for base in self._bases if base.seq > file.seq)
            return lambda ids: self._wanted_of_base(ids) & ~newer.cover(ids)
        place = 2 * next(number for number, other in enumerate(self._files) if other is file)

        def is_newest(ids: Ids) -> Mask:
            at, is_known = self._find(ids)
            is_known[is_known] = self._places[at[is_known]] == place
            return is_known

        return is_newest

    def _wanted_of_base(self, ids: Ids) -> Mask:
        mask = self._owned(ids)
        return mask & ~self._find(ids)[1] if len(self._ids) else mask

    def _find(self, ids: Ids) -> tuple[Ids, Mask]:
        at = np.searchsorted(self._ids, ids)
        is_known: Mask = at < len(self._ids)
        is_known[is_known] = self._ids[at[is_known]] == ids[is_known]
        return at, is_known


class Spans:
    """Ids between the lowest and the highest of any of some bases."""

    def __init__(self, bases: Iterable[TableFile]) -> None:
        spans = sorted((base.min_id, base.max_id) for base in bases)
        self._lows = np.array([low for low, _ in spans], np.int64)
        self._highs = np.maximum.accumulate(np.array([high for _, high in spans], np.int64))

    def cover(self, ids: Ids) -> Mask:
        if not len(self._lows):
            return np.zeros(len(ids), np.bool_)
        at = np.searchsorted(self._lows, ids, side="right") - 1
        covered: Mask = (at >= 0) & (ids <= self._highs[at])
        return covered
