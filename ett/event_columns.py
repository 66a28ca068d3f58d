"""The native parser of event logs: checked lines, and the plain step records among them as columns of integers.

Steps are almost all of a log. A line that is not a plain step record in canonical form is left to json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any

from ett.event_schema import COMMON_FIELDS, Record, check_version, has_fields_of_kind, rank_of_source

try:
    from ett import _event_parser as _native
except ImportError:  # not built: a source tree without a compiler
    _native = None

NATIVE: Any = _native
OTHER, STEP = 0, 1  # kinds of lines; 2: a bad checksum


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedLines:
    """Lines of a file, each with its kind and where it ends, its LF left out.

    `steps` has a row for each line of kind STEP, in order: the columns of `_event_parser.COLUMNS` as int64 (texts by
    their place in `texts`), then the bits of the columns that the record has.
    """

    kinds: bytes
    ends: list[int]
    steps: Any
    texts: list[str]
    has_unended_line: bool


def parse_lines(data: bytes) -> CheckedLines:
    """Return the lines of a file; holds no GIL while it reads. Only where `NATIVE` is there."""
    kinds, ends, steps, texts, has_unended_line = NATIVE.parse(data)
    return CheckedLines(
        kinds=kinds.tobytes(), ends=ends.tolist(), steps=steps, texts=texts, has_unended_line=has_unended_line
    )


def step_records(lines: CheckedLines, file: str) -> Iterator[Record | None]:
    """Yield what `build_record` gives for each step line: None where a field that a rule needs is missing.

    Raises: CorruptState: a record is of another schema version.
    """
    present = lines.steps[:, -1]
    changes = [0, *((present[1:] != present[:-1]).nonzero()[0] + 1).tolist(), len(present)]
    for begin, end in pairwise(changes):
        for start in range(begin, end, _ROWS_AT_ONCE):
            rows = lines.steps[start : min(end, start + _ROWS_AT_ONCE)]
            yield from _records_of_equal_layout(rows, int(present[begin]), lines.texts, file)


_ROWS_AT_ONCE = 65_536  # bounds the Python integers that live at once


def _records_of_equal_layout(rows: Any, present: int, texts: list[str], file: str) -> Iterator[Record | None]:
    has = {name: index for index, name in enumerate(NATIVE.COLUMNS) if present >> index & 1}

    def column(name: str) -> list[int]:
        return rows[:, has[name]].tolist() if name in has else [0] * len(rows)

    def text(name: str) -> list[str]:
        return [texts[index] for index in column(name)] if name in has else [""] * len(rows)

    if "v" not in has:
        check_version(None, file)
    for version in set(column("v")):
        check_version(version, file)
    if not {"src", "seq", "wall_ns", "mono_ns"} <= has.keys() or not has_fields_of_kind("step", has):
        yield from [None] * len(rows)
        return
    sources = text("src")
    ranks = column("rank") if "rank" in has else [rank_of_source(source) for source in sources]
    common = (column("att"), column("gen"), sources, ranks, text("host"), text("boot"), column("pid"))
    clock = (column("seq"), column("wall_ns"), column("mono_ns"))
    names = [name for name in has if name not in COMMON_FIELDS]
    values = [[v == 1 for v in column(name)] if name == "committed" else column(name) for name in names]
    data = (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
    yield from map(Record, repeat("step"), text("job"), *common, *clock, repeat(file), data)
