"""The native parser of event logs: checked lines, and the plain records among them as columns of integers.

Steps are almost all of a log; spans and heartbeats are most of the rest. A line that is not a plain record in canonical
form is left to json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

from ett.event_schema import COMMON_FIELDS, Record, check_version, has_fields_of_kind, rank_of_source

try:
    from ett import _event_parser as _native
except ImportError:  # not built: a source tree without a compiler
    _native = None

if not hasattr(_native, "Lines"):  # built from an older source
    _native = None
NATIVE: Any = _native
TAIL = 9  # bytes after a line's JSON: a tab and eight hexadecimal digits
OTHER, PLAIN, BAD_CHECKSUM = 0, 1, 2  # kinds of lines


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedLines:
    """Lines of a file, each with its kind and where it ends, its LF left out; `native` has the plain records."""

    native: Any
    kinds: bytes
    ends: Any
    has_unended_line: bool

    def rows(self) -> Any:
        """Return a row for each line of kind PLAIN, in order.

        Returns: int64 [plain lines, columns + 1]: the columns of `_event_parser.COLUMNS` (texts by their place in
        `texts`), then the bits of the columns that the record has.
        """
        return self.native.rows()

    @property
    def texts(self) -> list[str]:
        return list(self.native.texts)


def fields_of(body: bytes) -> object:
    """Return what the JSON of a line says; None where it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def parse_lines(data: bytes) -> CheckedLines:
    """Return the lines of a file; holds no GIL while it reads. Only where `NATIVE` is there."""
    native = NATIVE.parse(data)
    return CheckedLines(native=native, kinds=native.kinds, ends=native.ends, has_unended_line=native.has_unended_line)


def plain_records(lines: CheckedLines, file: str) -> Iterator[Record | None]:
    """Yield what `build_record` gives for each plain line: None where a field that a rule needs is missing.

    Raises: CorruptState: a record is of another schema version.
    """
    all_rows, texts = lines.rows(), lines.texts
    layout = all_rows[:, (INDEX["ev"], -1)]
    changes = [0, *((layout[1:] != layout[:-1]).any(axis=1).nonzero()[0] + 1).tolist(), len(layout)]
    for begin, end in pairwise(changes):
        for start in range(begin, end, _ROWS_AT_ONCE):
            rows = all_rows[start : min(end, start + _ROWS_AT_ONCE)]
            yield from _records_of_equal_layout(rows, texts, file)


_ROWS_AT_ONCE = 65_536  # bounds the Python integers that live at once
INDEX: dict[str, int] = {} if _native is None else {name: index for index, name in enumerate(_native.COLUMNS)}
_BOOLEANS = frozenset({"blocking", "committed", "inferred", "samples_inferred"})


def _records_of_equal_layout(rows: Any, texts: list[str], file: str) -> Iterator[Record | None]:
    ev, present = texts[int(rows[0, INDEX["ev"]])], int(rows[0, -1])
    has = {name: index for index, name in enumerate(NATIVE.COLUMNS) if present >> index & 1}

    def column(name: str) -> list[int]:
        return rows[:, has[name]].tolist() if name in has else [0] * len(rows)

    def text(name: str) -> list[str]:
        return [texts[index] for index in column(name)] if name in has else [""] * len(rows)

    def values(name: str) -> list[Any]:
        if name == "name":
            return text(name)
        return [value == 1 for value in column(name)] if name in _BOOLEANS else column(name)

    if "v" not in has:
        check_version(None, file)
    for version in set(column("v")):
        check_version(version, file)
    if not {"src", "seq", "wall_ns", "mono_ns"} <= has.keys() or not has_fields_of_kind(ev, has):
        yield from [None] * len(rows)
        return
    sources = text("src")
    ranks = column("rank") if "rank" in has else [rank_of_source(source) for source in sources]
    common = (column("att"), column("gen"), sources, ranks, text("host"), text("boot"), column("pid"))
    clock = (column("seq"), column("wall_ns"), column("mono_ns"))
    names = [name for name in has if name not in COMMON_FIELDS]
    rows_of_values = zip(*map(values, names), strict=True) if names else repeat((), len(rows))
    data = (dict(zip(names, row, strict=True)) for row in rows_of_values)
    yield from map(Record, repeat(ev), text("job"), *common, *clock, repeat(file), data)
