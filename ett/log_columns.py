"""A log's plain records as native columns and the rest as records: ten million steps in a fraction of their bytes.

Whatever the columns cannot hold exactly (floats, unknown fields in a step, two files of one writer at one time) makes
the log one that only `records` can tell: `is_exact` says which.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ett import event_columns
from ett.event_columns import CheckedLines
from ett.event_schema import (
    COMMON_FIELDS,
    VERSION,
    Record,
    build_record,
    check_version,
    is_number,
    rank_of_source,
)
from ett.log_problems import LogProblems

try:
    from ett import _accounting as _native
except ImportError:  # not built: a source tree without a compiler
    _native = None

if not hasattr(_native, "PLAIN_BY_JSON"):  # built from an older source
    _native = None
NATIVE: Any = _native
CHUNK_BYTES = 1 << 20  # about what a core's cache holds
_TAIL = event_columns.TAIL
_NUM_NUMBERS = 7  # of a record that is not in columns: whether there is one, seq, src, host, boot, pid, mono_ns
_MOST_THREADS = 8
_ROWS_AT_ONCE = 4096
_FIELDS = Record._fields
assert _FIELDS[-5:] == ("seq", "wall_ns", "mono_ns", "file", "data")
_ROW_LIMIT, _WALL_LIMIT = 1 << 60, 1 << 62  # those of _log_columns.hpp


class LogColumns:
    """Records of one log, each once. Files are added in chunks of whole lines, or records one by one.

    `others` are the records that are not in columns, in the order in which they came.
    """

    def __init__(self) -> None:
        self.native = NATIVE.Log()
        self.others: list[Record] = []
        self.names: list[str] = []  # of files; a file's number is its place
        self._numbers: dict[str, int] = {}
        self._dropped: dict[tuple[str, str, str, int], int] = {}  # by process
        self._num_torn = self._num_corrupt = self._num_malformed = 0
        self._has_odd_record = False
        self._unheld: list[Record] = []  # too large for the columns' numbers

    def file_number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def add_lines(self, name: str, data: bytes, lines: CheckedLines, *, is_last: bool) -> None:
        """Take the whole lines of a part of a file. `is_last`: nothing follows, so a bad last line is a torn one.

        Raises: CorruptState: a record of another schema version.
        """
        import numpy as np

        file = self.file_number(name)
        for version in lines.native.versions():
            check_version(version, name)
        self._count_bad(lines, is_last=is_last)
        found: list[Record | None] = []
        given: list[list[int]] = []  # plain records that json had to read
        kinds, texts = np.frombuffer(lines.kinds, dtype=np.uint8).copy(), list[str]()
        for line, begin, end in _bodies(kinds, lines.ends):
            record = self._record(data[begin:end], name)
            row = None if record is None else _row_of(record, texts)
            if row is None:
                found.append(record)
            else:
                given.append(row)
                kinds[line] = NATIVE.PLAIN_BY_JSON
        empty = (0,) * _NUM_NUMBERS
        numbers = [empty if record is None else self._numbers_of(record) for record in found]
        is_new = self.native.add_chunk(
            file,
            lines.native,
            kinds,
            np.array(given, np.int64).reshape(-1, len(event_columns.INDEX) + 1),
            texts,
            np.array(numbers, np.int64).reshape(-1, _NUM_NUMBERS),
        )
        self._keep(record for record, new in zip(found, is_new.tolist(), strict=True) if new and record is not None)

    def add(self, record: Record) -> bool:
        """Return whether the record is new: its number in its file was not there before."""
        file = self.file_number(record.file)
        texts: list[str] = []
        row = _row_of(record, texts)
        if row is not None:
            return bool(self.native.add_row(file, row, texts))
        numbers = self._numbers_of(record)
        is_new = bool(numbers[0] and self.native.add_number(file, *numbers[1:]))
        if is_new:
            self._keep([record])
        return is_new

    @property
    def is_odd(self) -> bool:
        """True for good once a record was added that only Python's numbers can hold, or only `records` can tell."""
        return self._has_odd_record or bool(self.native.is_odd)

    @property
    def may_hold_copies(self) -> bool:
        """True where two files have records of one writer and one time: one may be a copy of the other."""
        return bool(self.native.may_hold_copies())

    @property
    def is_exact(self) -> bool:
        """False where the columns may not say the same as the records: only the records can be accounted for then."""
        return not (self.is_odd or self.may_hold_copies)

    @property
    def num_records(self) -> int:
        return int(self.native.num_rows) + len(self.others)

    def problems(self) -> LogProblems:
        dropped = dict(self._dropped)
        for process, count in self.native.dropped().items():
            dropped[process] = max(count, dropped.get(process, 0))
        return LogProblems(
            torn_tail=self._num_torn,
            corrupt_record=self._num_corrupt,
            malformed_record=self._num_malformed + self.native.num_malformed,
            lost_records=self.native.num_lost(),
            duplicate_record=self.native.num_duplicates,
            dropped_records=sum(dropped.values()),
        )

    def record(self, stream: int, row: int) -> Record:
        """Return a record that is in columns."""
        record = build_record(self.native.fields(stream, row), self.names[self.native.file_of(stream)])
        assert record is not None, "an incomplete record is not kept"
        return record

    def records_at(self, stream: int, rows: Sequence[int]) -> list[Record]:
        """Return many records of one stream, at a fraction of what each of them alone takes."""
        if not rows:
            return []
        first = self.record(stream, rows[0])
        names, values = self.native.rows_of(stream, rows)
        seq, wall, mono = (names.index(name) for name in ("seq", "wall_ns", "mono_ns"))
        # A field of the record is one of those that vary, or what the first one has.
        places = [(name, names.index(name) if name in names else None) for name in first.data]
        varying = [(name, place) for name, place in places if place is not None]
        same = {name: first.data[name] for name, place in places if place is None}
        head, file = first[: _FIELDS.index("seq")], first.file
        return [
            Record._make(
                (*head, row[seq], row[wall], row[mono], file, same | {name: row[place] for name, place in varying})
            )
            for row in values
        ]

    def records(self) -> Iterator[Record]:
        """Yield every record; slow, and all of them as objects are many times as large."""
        yield from self.others
        yield from self._unheld
        for stream, (*_, size, _, _) in enumerate(self.native.summary()):
            for row in range(0, size, _ROWS_AT_ONCE):
                yield from self.records_at(stream, range(row, min(size, row + _ROWS_AT_ONCE)))

    def until(self, limits: list[int], others: list[Record]) -> LogColumns:
        """Return what of the log is there while each stream's clock shows at most its limit, with these others."""
        kept = LogColumns()
        kept.native = self.native.cut(limits)
        kept.names, kept.others = self.names, others
        return kept

    def count_bad(self, *, is_torn: bool, num_corrupt: int, num_malformed: int) -> None:
        self._num_torn += is_torn
        self._num_corrupt += num_corrupt
        self._num_malformed += num_malformed

    def _count_bad(self, lines: CheckedLines, *, is_last: bool) -> None:
        bad = lines.kinds.count(event_columns.BAD_CHECKSUM)
        if is_last and lines.has_unended_line:
            self._num_torn += 1
        elif is_last and lines.kinds[-1:] == bytes([event_columns.BAD_CHECKSUM]):
            self._num_torn += 1
            bad -= 1
        self._num_corrupt += bad

    def _record(self, body: bytes, name: str) -> Record | None:
        fields = event_columns.fields_of(body)
        if not isinstance(fields, dict):
            self._num_malformed += 1
            return None
        check_version(fields.get("v"), name)
        record = build_record(fields, name)
        if record is None:
            self._num_malformed += 1
        return record

    def _numbers_of(self, record: Record) -> tuple[int, ...]:
        text = self.native.text_id
        if not all(abs(n) <= _WALL_LIMIT for n in (record.seq, record.pid, record.mono_ns, record.wall_ns)):
            self._has_odd_record = True
            self._unheld.append(record)
            return (0,) * _NUM_NUMBERS
        return (1, record.seq, text(record.src), text(record.host), text(record.boot), record.pid, record.mono_ns)

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            self.others.append(record)
            self._has_odd_record |= is_odd(record)
            if record.ev == "heartbeat" and type(count := record.data.get("dropped")) is int:
                process = (record.src, record.host, record.boot, record.pid)
                self._dropped[process] = max(count, self._dropped.get(process, 0))


def is_odd(record: Record) -> bool:
    """True for a record that the native sweep cannot take: a step or span that is no row, or a fractional cursor."""
    if record.ev in ("step", "step_begin", "span_begin", "span_end"):
        return True
    numbers: list[Any] = [record.att, record.gen, record.pid, record.seq, record.mono_ns]
    if record.ev in ("ckpt_commit", "restore") and is_number(cursor := record.data.get("cursor")):
        numbers.append(cursor)
    small = all(type(number) is int and abs(number) <= _ROW_LIMIT for number in numbers)
    return not small or abs(record.wall_ns) > _WALL_LIMIT or (record.rank is not None and abs(record.rank) > _ROW_LIMIT)


def read_columns(files: Iterable[tuple[str, Iterable[bytes]]], *, threads: int | None = None) -> LogColumns:
    """Return the log of files given as (name, their bytes in pieces cut anywhere); bounded memory.

    Args:
        threads: which check and parse lines, beside the caller's own, which takes them in; None: as many as cores.
    Raises: CorruptState: a record of another schema version.
    """
    threads = threads or num_cores()
    columns = LogColumns()
    waiting: deque[tuple[str, bytes, bool, Future[CheckedLines]]] = deque()

    def take() -> None:
        name, data, is_last, parsing = waiting.popleft()
        columns.add_lines(name, data, parsing.result(), is_last=is_last)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        for name, data, is_last in _chunks(files):
            waiting.append((name, data, is_last, pool.submit(event_columns.parse_lines, data)))
            if len(waiting) > 2 * threads:
                take()
        while waiting:
            take()
    return columns


def num_cores() -> int:
    """Return how many threads an account may use: the cores that this process may run on, at most `_MOST_THREADS`."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def file_pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes in pieces of bounded size; unbuffered, so that nothing is kept twice."""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _chunks(files: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[tuple[str, bytes, bool]]:
    """Yield (file, whole lines, whether they are its last); the last may hold a line without an end."""
    for name, pieces in files:
        rest = b""
        held: bytes | None = None
        for piece in pieces:
            end = piece.rfind(b"\n") + 1
            if end:
                if held is not None:
                    yield name, held, False
                held = b"".join((rest, memoryview(piece)[:end]))
                rest = piece[end:]
            else:
                rest += piece
        yield name, (held or b"") + rest, True


def _row_of(record: Record, texts: list[str]) -> list[int] | None:
    """Return the row of a plain record that was read by json, its texts added to `texts`; None for any other record."""
    if record.ev not in NATIVE.KINDS or not record.data.keys() <= event_columns.INDEX.keys():
        return None
    fields: dict[str, Any] = {name: getattr(record, name) for name in COMMON_FIELDS if name != "v"} | {
        "v": VERSION,
        **record.data,
    }
    if fields["rank"] is None or fields["rank"] == rank_of_source(record.src):
        del fields["rank"]
    row = [0] * (len(event_columns.INDEX) + 1)
    for name, value in fields.items():
        index = event_columns.INDEX[name]
        if type(value) is not _TYPES.get(name, int) or (type(value) is int and abs(value) > _WALL_LIMIT):
            return None
        if type(value) is str:
            texts.append(value)
        row[index] = len(texts) - 1 if type(value) is str else int(value)
        row[-1] |= 1 << index
    return row


_TYPES: dict[str, type] = dict.fromkeys(("boot", "ev", "host", "job", "name", "src"), str)
_TYPES |= dict.fromkeys(("blocking", "committed", "inferred", "samples_inferred"), bool)


def _bodies(kinds: Any, ends: Any) -> Iterator[tuple[int, int, int]]:
    """Yield (line, begin, end) of the JSON of each line that is no plain record."""
    for index in (kinds == event_columns.OTHER).nonzero()[0].tolist():
        begin = int(ends[index - 1]) + 1 if index else 0
        yield index, begin, int(ends[index]) - _TAIL
