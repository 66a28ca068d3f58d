"""Which rows of a table's files are live, found in bounded memory: ids alone are read, a range of ids at a time.

A row is live where no file with a higher seq has its id, as a row or as a tombstone. One bit a row, in a temporary
file, says so; a second pass then reads every file once, front to back, for its live rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.newest_rows import Spans, twice_in
from ett.checkpoint.read_plan import Mask
from ett.checkpoint.segment_reader import open_segment
from ett.checkpoint.segment_rows import checked_blocks, read_ids
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import IDS, Ids, TableFile, TableSpec

RANGE_IDS = 2 << 20  # of all files together that are in memory at once: about 60 bytes each while they are sorted
_TOP = 1 << 63  # above every id


@dataclass(frozen=True, slots=True)
class _Run:
    """Ids of one block: of the rows from `first_row` on, or of tombstones."""

    file: int
    first_row: int
    is_tombstones: bool
    ids: Ids


class LiveRows:
    """num_rows: of the table. counts: live rows of each file, in the order of the files."""

    def __init__(self, store: Store, spec: TableSpec, files: Sequence[TableFile], bits: NDArray[np.uint8]) -> None:
        self._store, self._spec, self._files = store, spec, files
        self._bits = bits
        self._starts = np.cumsum([0, *(-(-file.num_rows // 8) for file in files)])
        self.counts = [0] * len(files)
        self._newer_bases: dict[tuple[int, bool], Spans] = {}
        low, width = -_TOP, 2 * _TOP
        while low < _TOP:
            runs, high = self._read(low, min(_TOP, low + width))
            num_ids = sum(len(run.ids) for run in runs)
            width = max(1, (high - low) * RANGE_IDS * 3 // 4 // max(1, num_ids))  # as dense as this range
            self._settle(runs)
            low = high

    @property
    def num_rows(self) -> int:
        return sum(self.counts)

    def wanted(self, number: int) -> Callable[[Ids], Mask]:
        """Return what says of the ids of a file which are live; it is asked for all of them once, in order."""
        row = 0

        def is_live(ids: Ids) -> Mask:
            nonlocal row
            first, row = row, row + len(ids)
            start = int(self._starts[number]) + first // 8
            bits = np.unpackbits(self._bits[start : int(self._starts[number]) - (-row // 8)])
            return bits[first % 8 : first % 8 + len(ids)].astype(np.bool_)

        return is_live

    def _read(self, low: int, high: int) -> tuple[list[_Run], int]:
        """Return the ids in [low, high), and the bound: a lower one where more than RANGE_IDS were met."""
        runs: list[_Run] = []
        num_ids = 0
        for number, file in enumerate(self._files):
            if file.max_id < low or file.min_id >= high:
                continue
            for run in self._runs(number, low):
                if run.ids[0] >= high:
                    continue
                runs.append(_below(run, high))
                num_ids += len(runs[-1].ids)
                if num_ids > RANGE_IDS:
                    met = np.concatenate([kept.ids for kept in runs])
                    high = max(low + 1, int(np.partition(met, len(met) // 2)[len(met) // 2]))
                    runs = [_below(kept, high) for kept in runs if kept.ids[0] < high]
                    num_ids = sum(len(kept.ids) for kept in runs)
        return runs, high

    def _runs(self, number: int, low: int) -> Iterator[_Run]:
        file = self._files[number]
        with open_segment(self._store, file.stored, file.identity) as segment:
            per_section = checked_blocks(segment, self._spec, file)
            for section in (0, *range(len(self._spec.groups) + 1, len(per_section))):
                name, blocks, row = segment.header["sections"][section]["name"], per_section[section], 0
                for at, record in enumerate(blocks):
                    if record["max_id"] >= low:
                        (ids,) = read_ids(segment, blocks[at : at + 1], name)
                        skipped = int(np.searchsorted(ids, low))
                        yield _Run(number, row + skipped, name != IDS, ids[skipped:].copy())
                    row += int(record["num_rows"])

    def _settle(self, runs: list[_Run]) -> None:
        runs.sort(key=lambda run: self._files[run.file].seq)
        ends = np.cumsum([len(run.ids) for run in runs], dtype=np.int64)
        seqs = np.repeat([self._files[run.file].seq for run in runs], [len(run.ids) for run in runs])
        ids = np.concatenate([np.empty(0, np.int64), *(run.ids for run in runs)])
        order = np.argsort(ids, kind="stable")  # equal ids stay in the order of seq
        is_repeated = ids[order[1:]] == ids[order[:-1]]
        twice = np.flatnonzero(is_repeated & (seqs[order[1:]] == seqs[order[:-1]]))
        if len(twice):
            raise twice_in(self._spec, int(seqs[order[twice[0]]]), int(ids[order[twice[0]]]))
        is_newest = np.ones(len(ids), np.bool_)
        is_newest[order[:-1]] = ~is_repeated
        for run, end in zip(runs, ends, strict=True):
            if not run.is_tombstones:
                self._mark(run, is_newest[end - len(run.ids) : end] & ~self._newer(run.file).cover(run.ids))

    def _newer(self, number: int) -> Spans:
        """Return the ids that newer bases cover, whether they have them or not."""
        file = self._files[number]
        is_base = file.identity.kind == "base"
        key = file.seq, is_base
        if key not in self._newer_bases:
            bases = (other for other in self._files if other.identity.kind == "base")
            self._newer_bases[key] = Spans(b for b in bases if b.seq > file.seq or (b.seq == file.seq and not is_base))
        return self._newer_bases[key]

    def _mark(self, run: _Run, is_live: Mask) -> None:
        first, skipped = divmod(run.first_row, 8)
        start = int(self._starts[run.file]) + first
        bits = np.zeros(-(-(skipped + len(is_live)) // 8) * 8, np.bool_)
        bits[skipped : skipped + len(is_live)] = is_live
        packed = np.packbits(bits)
        self._bits[start : start + len(packed)] |= packed  # its neighbours in a byte may have been marked
        self.counts[run.file] += int(is_live.sum())


def _below(run: _Run, high: int) -> _Run:
    if high == _TOP:  # no int64: numpy would compare floats
        return run
    return replace(run, ids=run.ids[: int(np.searchsorted(run.ids, high))])


@contextmanager
def live_rows(store: Store, spec: TableSpec, files: Sequence[TableFile]) -> Iterator[LiveRows]:
    """Find the live rows of a table's files, in an order in which they are then asked for.

    Raises: CorruptState: any byte that matters differs from what was committed; two files of one commit have an id.
    """
    num_bytes = sum(-(-file.num_rows // 8) for file in files)
    with tempfile.TemporaryFile(prefix="ett-live-rows-") as file:
        file.truncate(max(1, num_bytes))
        yield LiveRows(store, spec, files, np.memmap(file, np.uint8, "r+"))
