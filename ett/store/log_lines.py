"""Lines of an event file -> the sequence number of each, or why it is no record: by the checks of the reader."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from ett import event_columns
from ett.errors import CorruptState
from ett.event_reader import parse_file_in_python
from ett.event_schema import VERSION, build_record, has_fields_of_kind

RejectCode = Literal["bad_checksum", "malformed", "version", "conflict"]
TAIL_BYTES = 9  # a tab and eight hexadecimal digits
_SHOWN = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A line that was not taken: its place among the lines given, a stable code, and one sentence."""

    line_index: int
    code: RejectCode
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLines:
    """Whole lines: `ends[i]` is where the LF of line i stands, `seqs[i]` its number, None where codes[i] says why."""

    data: bytes
    ends: list[int]
    seqs: list[int | None]
    codes: dict[int, RejectCode]

    def line(self, index: int) -> bytes:
        """Return the line with its LF."""
        return self.data[self.begin(index) : self.ends[index] + 1]

    def body(self, index: int) -> bytes:
        """Return the JSON of the line: without its checksum."""
        return self.data[self.begin(index) : self.ends[index] - TAIL_BYTES]

    def begin(self, index: int) -> int:
        return self.ends[index - 1] + 1 if index else 0


def read_lines(data: bytes) -> LogLines:
    """Return the lines of `data`, which ends with LF or is empty; native where the extension is built."""
    return _read_in_python(data) if event_columns.NATIVE is None else _read_natively(data)


def describe(code: RejectCode, line: bytes) -> str:
    """Return one printable sentence about a rejected line."""
    why = {
        "bad_checksum": "the checksum does not match",
        "malformed": "a field that every record needs is missing or of another type",
        "version": f"of another schema version than {VERSION}",
        "conflict": "another record with this sequence number is already stored; that one was kept",
    }[code]
    shown = line[:_SHOWN].decode("utf-8", "replace").rstrip("\n")
    return f"{why}: {shown!r}{' …' if len(line) > _SHOWN else ''}"


def stand_in(code: RejectCode, number: int) -> bytes:
    """Return a line that a reader judges as it did one that was rejected; each number gives another line."""
    bodies = {"version": b'{"n":%d,"v":"unknown"}', "malformed": b"[%d]"}
    if code not in bodies:
        return b"?%d\n" % number
    body = bodies[code] % number
    return b"%b\t%08x\n" % (body, zlib.crc32(body))


def _read_natively(data: bytes) -> LogLines:
    parsed = event_columns.parse_lines(data)
    ends: list[int] = parsed.ends.tolist()
    seqs: list[int | None] = [None] * len(ends)
    codes: dict[int, RejectCode] = {}
    plain = iter(_plain_seqs(parsed.rows(), parsed.texts))
    begin = 0
    for index, (kind, end) in enumerate(zip(parsed.kinds, ends, strict=True)):
        if kind == event_columns.PLAIN:
            found = next(plain)
        elif kind == event_columns.OTHER:
            found = _seq_of(data[begin : end - TAIL_BYTES])
        else:
            found = "bad_checksum"
        if isinstance(found, int):
            seqs[index] = found
        else:
            codes[index] = found
        begin = end + 1
    return LogLines(data=data, ends=ends, seqs=seqs, codes=codes)


def _plain_seqs(rows: Any, texts: list[str]) -> list[int | RejectCode]:
    """The sequence number of each row of a plain record; rows of one layout are judged together."""
    columns = event_columns.NATIVE.COLUMNS
    layouts = list(zip(rows[:, -1].tolist(), rows[:, columns.index("ev")].tolist(), strict=True))
    verdicts: dict[tuple[int, int], RejectCode | None] = {}
    for bits, ev in set(layouts):
        has = {name for index, name in enumerate(columns) if bits >> index & 1}
        is_whole = {"src", "seq", "wall_ns", "mono_ns"} <= has and has_fields_of_kind(texts[ev], dict.fromkeys(has, 0))
        verdicts[bits, ev] = "version" if "v" not in has else None if is_whole else "malformed"
    versions, seqs = rows[:, columns.index("v")].tolist(), rows[:, columns.index("seq")].tolist()
    found: list[int | RejectCode] = []
    for layout, version, seq in zip(layouts, versions, seqs, strict=True):
        verdict = verdicts[layout]
        found.append(verdict or (seq if version == VERSION else "version"))
    return found


def _seq_of(body: bytes) -> int | RejectCode:
    try:
        fields = json.loads(body)
    except ValueError:
        return "malformed"
    if not isinstance(fields, dict):
        return "malformed"
    if fields.get("v") != VERSION:
        return "version"
    record = build_record(fields, "")
    return "malformed" if record is None else record.seq


def _read_in_python(data: bytes) -> LogLines:
    lines = data.split(b"\n")[:-1]
    ends: list[int] = []
    seqs: list[int | None] = []
    codes: dict[int, RejectCode] = {}
    for index, line in enumerate(lines):
        ends.append((ends[-1] + 1 if ends else 0) + len(line))
        code: RejectCode = "bad_checksum"
        try:
            parsed = parse_file_in_python("", line + b"\n")
        except CorruptState:
            seqs.append(None)
            codes[index] = "version"
            continue
        if parsed.records:
            seqs.append(parsed.records[0].seq)
            continue
        code = "malformed" if parsed.num_malformed else "bad_checksum"
        seqs.append(None)
        codes[index] = code
    return LogLines(data=data, ends=ends, seqs=seqs, codes=codes)
