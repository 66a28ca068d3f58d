"""Event log files -> records: checks every line, keeps what is whole, counts what is not, raises only on a new schema.

Reading never depends on the order of files or lines, and reading a copy of a file again changes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ett import event_columns
from ett.errors import NotFound
from ett.event_columns import TAIL, fields_of
from ett.event_schema import Record, build_record, check_version
from ett.log_columns import NATIVE, LogColumns, file_pieces, read_columns
from ett.log_problems import LogProblems
from ett.ring_tail import Tail, waiting_tails

NamedPieces = tuple[str, Callable[[], Iterable[bytes]]]


class EventLog:
    """Records of one job in no particular order, and what was wrong with the files.

    A log that was read into columns makes its records when they are first asked for.
    """

    def __init__(
        self,
        records: list[Record] | None = None,
        problems: LogProblems | None = None,
        *,
        columns: LogColumns | None = None,
    ) -> None:
        self._records = [] if records is None and columns is None else records
        self._problems = problems
        self.columns = columns

    @property
    def records(self) -> list[Record]:
        if self._records is None:
            assert self.columns is not None, "a log has records or columns"
            self._records = list(self.columns.records())
        return self._records

    @property
    def problems(self) -> LogProblems:
        if self._problems is None:
            self._problems = LogProblems() if self.columns is None else self.columns.problems()
        return self._problems


@dataclass(kw_only=True, slots=True)
class ParsedFile:
    records: list[Record]
    is_torn: bool
    num_corrupt: int
    num_malformed: int


def parse_file(name: str, data: bytes) -> ParsedFile:
    """Return the whole records of one file, in its order, duplicates included; natively where the extension is built.

    The two parsers give the same answer for any bytes; `parse_file_in_python` is the one that says what is right.

    Args:
        name: kept in every record, and the file's identity when it is merged with others.
        data: the file's bytes, cut anywhere.
    Raises: CorruptState: a line is whole but of another schema version.
    """
    parse = parse_file_in_python if event_columns.NATIVE is None else _parse_file_natively
    return parse(name, data)


def parse_file_in_python(name: str, data: bytes) -> ParsedFile:
    """The reference of `parse_file`.

    Args:
        name: kept in every record, and the file's identity when it is merged with others.
        data: the file's bytes, cut anywhere.
    Raises: CorruptState: a line is whole but of another schema version.
    """
    parsed = ParsedFile(records=[], is_torn=False, num_corrupt=0, num_malformed=0)
    lines = data.split(b"\n")
    # A line that lost its end may still have a checksum that fits by luck: it is dropped like any torn line.
    parsed.is_torn = lines.pop() != b""
    for index, line in enumerate(lines):
        body = _checked_body(line)
        if body is None:
            _add_bad_checksum(parsed, is_last=index == len(lines) - 1)
        else:
            _add(parsed, fields_of(body), name)
    return parsed


def _parse_file_natively(name: str, data: bytes) -> ParsedFile:
    lines = event_columns.parse_lines(data)
    parsed = ParsedFile(records=[], is_torn=lines.has_unended_line, num_corrupt=0, num_malformed=0)
    plain = event_columns.plain_records(lines, name)
    begin = 0
    for index, (kind, end) in enumerate(zip(lines.kinds, lines.ends.tolist(), strict=True)):
        if kind == event_columns.PLAIN:
            _append(parsed, next(plain))
        elif kind == event_columns.OTHER:
            _add(parsed, fields_of(data[begin : end - TAIL]), name)
        else:
            _add_bad_checksum(parsed, is_last=index == len(lines.kinds) - 1)
        begin = end + 1
    return parsed


class LogMerger:
    """Joins files, or single records as they arrive, into one log: copies of a record, under any name, count once."""

    def __init__(self) -> None:
        self._log = EventLog()
        self._seen: set[tuple[object, ...]] = set()
        self._numbers: dict[str, set[int]] = {}
        self._dropped: dict[tuple[object, ...], int] = {}  # by process: its later files carry on the count

    def add_file(self, file: ParsedFile) -> None:
        problems = self._log.problems
        problems.torn_tail += file.is_torn
        problems.corrupt_record += file.num_corrupt
        problems.malformed_record += file.num_malformed
        for record in file.records:
            self.add(record)

    def add(self, record: Record) -> bool:
        """Return whether the record is new: neither its number in its file nor the record itself was there before."""
        copy_key = (record.src, record.host, record.boot, record.pid, record.seq, record.mono_ns, record.ev)
        numbers = self._numbers.setdefault(record.file, set())
        is_new = record.seq not in numbers and copy_key not in self._seen
        numbers.add(record.seq)
        if not is_new:
            self._log.problems.duplicate_record += 1
            return False
        self._seen.add(copy_key)
        self._log.records.append(record)
        if record.ev == "heartbeat" and type(count := record.data.get("dropped")) is int:
            process = copy_key[:4]
            self._dropped[process] = max(count, self._dropped.get(process, 0))
        return True

    def log(self) -> EventLog:
        """Return the log so far; it grows with what is added later."""
        problems = self._log.problems
        problems.lost_records = sum(max(known) + 1 - len(known) for known in self._numbers.values())
        problems.dropped_records = sum(self._dropped.values())
        return self._log


def merged(columns: LogColumns) -> LogMerger:
    """Return a merger that was given the records of `columns`, and what was wrong with their files."""
    merger, seen = LogMerger(), columns.problems()
    for record in columns.records():
        merger.add(record)
    merger.add_file(
        ParsedFile(records=[], is_torn=False, num_corrupt=seen.corrupt_record, num_malformed=seen.malformed_record)
    )
    problems = merger.log().problems
    problems.torn_tail += seen.torn_tail
    problems.duplicate_record += seen.duplicate_record
    return merger


def merge(files: Iterable[ParsedFile]) -> EventLog:
    """Return the records of all files, each once."""
    merger = LogMerger()
    for file in files:
        merger.add_file(file)
    return merger.log()


def event_files(path: Path) -> list[Path]:
    """Return the event files under a job's folder, or under its events/ folder itself. Raises: NotFound."""
    root = path / "events" if (path / "events").is_dir() else path
    if not root.is_dir():
        raise NotFound(f"no event log under {path}", expected="a folder with *.jsonl files, or one that holds events/")
    return sorted(root.rglob("*.jsonl"))


def read_folder(path: Path) -> EventLog:
    """Return the event log under `path`: a job's folder, or its events/ folder itself.

    What the job's ranks on this host recorded a moment ago, and no file has yet, is part of it (docs/events.md, "The
    ring").

    Raises:
        NotFound: there is no such folder.
        CorruptState: a record is of a schema version that this reader does not know.
    """
    return read_files(folder_files(path))


def folder_files(path: Path) -> list[NamedPieces]:
    """Return the event files of a job on this host, what waits in a ring included. Raises: NotFound."""
    tails = dict(waiting_tails(path))  # before the files: a line may move from its ring to its file meanwhile
    files: list[NamedPieces] = []
    for file in event_files(path):
        name = f"{file.parent.name}/{file.name}"
        files.append((name, partial(_completed, file, tails.pop(name, None))))
    return [*files, *((name, partial(_completed, None, tail)) for name, tail in tails.items())]


def read_files(files: Sequence[NamedPieces]) -> EventLog:
    """Return the log of files given as (name, what opens it: its bytes in pieces cut anywhere), each record once.

    Columns where they can hold the log exactly; else it is read once more, into records.

    Raises: CorruptState: a record is of a schema version that this reader does not know.
    """
    if NATIVE is not None and event_columns.NATIVE is not None:
        columns = read_columns((name, pieces()) for name, pieces in files)
        if columns.is_exact:
            return EventLog(columns=columns)
    return merge(parse_file(name, b"".join(pieces())) for name, pieces in files)


def _completed(path: Path | None, tail: Tail | None) -> Iterator[bytes]:
    """Yield a file's bytes, then what of `tail` it lacks."""
    size = 0
    for piece in () if path is None else file_pieces(path):
        size += len(piece)
        yield piece
    if tail is not None and size >= tail.offset:
        yield tail.lines[size - tail.offset :]


def _checked_body(line: bytes) -> bytes | None:
    body = line[:-TAIL]
    return body if line[-TAIL:] == b"\t%08x" % zlib.crc32(body) else None


def _add_bad_checksum(parsed: ParsedFile, *, is_last: bool) -> None:
    if is_last and not parsed.is_torn:
        parsed.is_torn = True
    else:
        parsed.num_corrupt += 1


def _add(parsed: ParsedFile, fields: object, name: str) -> None:
    if not isinstance(fields, dict):
        parsed.num_malformed += 1
        return
    check_version(fields.get("v"), name)
    _append(parsed, build_record(fields, name))


def _append(parsed: ParsedFile, record: Record | None) -> None:
    if record is None:
        parsed.num_malformed += 1
    else:
        parsed.records.append(record)
