"""Windows of the rows of Parquet files, by named columns: numbers, or lists of numbers.

A window is as long as its number of rows says, whatever row groups it spans; decoding a row of it costs the row
groups that it overlaps. So ranks share the decoding only where each has windows (`data.lanes`) of its own row groups.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ett.errors import ConfigError, DataError
from ett.trainer.data.columns import Column, Columns, Jagged, join_rows
from ett.trainer.data.input_files import InputFiles, is_local, reading_errors
from ett.trainer.data.position import BEGINNING, Position

if TYPE_CHECKING:
    import pyarrow as pa

# Decoded row groups kept for the next window, which begins in the middle of one. Others are given back at once: memory
# that is written again costs half of memory that is new.
_GROUPS_KEPT = 2
_FOOTERS_KEPT = 16  # open files

Convert = Callable[["pa.Array"], Column]  # raises ValueError: says what is wrong with the values


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What a column must hold, and how its arrow values become ours."""

    accepts: Callable[[pa.DataType], bool]
    expected: str
    convert: Convert
    empty: Callable[[], Column]


@dataclass
class ParquetWindow:
    """Rows [start.offset, start.offset + num_rows) of a file; decoded when first asked for, by one thread."""

    start: Position
    num_rows: int
    columns: Columns | None = None
    states: NDArray[np.int64] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


@dataclass(frozen=True, slots=True)
class _OpenFile:
    file: Any
    group_starts: list[int]  # the first row of each row group, and the number of rows


class ParquetSource:
    """Windows of one or more files with the columns of `rules`, in their order; any other columns are not read."""

    def __init__(self, files: InputFiles, rules: Mapping[str, ColumnRule]) -> None:
        self._parquet = pyarrow_parquet(files[0].path)
        self.files, self._rules = files, dict(rules)
        self._lock = threading.Lock()  # a ParquetFile serves one thread at a time
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], Columns] = OrderedDict()

    def windows(self, num_rows: int, start: Position = BEGINNING) -> Generator[ParquetWindow, None, None]:
        """Yield windows of `num_rows` rows (fewer at the end of a file), beginning at `start`; only footers are read.

        Raises: DataError: a file is no whole Parquet file, lacks a column, or has one of another type.
        """
        first_row = start.first_row
        for index in range(start.file, len(self.files)):
            with self._lock:
                in_file = self._file(index).group_starts[-1]
            begin = start.offset if index == start.file else 0
            for offset in range(begin, in_file, num_rows):
                size = min(num_rows, in_file - offset)
                yield ParquetWindow(Position(index, offset, offset, first_row), size)
                first_row += size

    def load(self, window: ParquetWindow) -> Columns:
        """Return the columns of a window, which it keeps."""
        with window.lock:
            if window.columns is None:
                with self._lock:
                    window.columns = self._decode(window.start.file, window.start.offset, window.num_rows)
            return window.columns

    def _decode(self, index: int, begin: int, num_rows: int) -> Columns:
        starts = self._file(index).group_starts
        parts = []
        for group in range(bisect_right(starts, begin) - 1, len(starts) - 1):
            first, after = starts[group], starts[group + 1]
            if first >= begin + num_rows:
                break
            low, high = max(begin, first), min(begin + num_rows, after)
            if low >= high:
                continue  # a group of no row
            is_whole = high - low == after - first
            decoded = self._group(index, group, is_kept=not is_whole)
            parts.append(decoded if is_whole else _cut(decoded, low - first, high - first))
        return join_rows(parts)

    def _group(self, index: int, group: int, *, is_kept: bool) -> Columns:
        found = self._groups.pop((index, group), None)
        if found is None:
            path = self.files[index].path
            with _parquet_errors(path):
                table = self._file(index).file.read_row_group(group, columns=list(self._rules), use_threads=False)
            found = {name: self._converted(path, name, table.column(name)) for name in self._rules}
        if is_kept:
            self._groups[index, group] = found
        while len(self._groups) > _GROUPS_KEPT:
            self._groups.popitem(last=False)
        return found

    def _converted(self, path: str, name: str, column: Any) -> Column:
        rule = self._rules[name]
        try:
            return rule.convert(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
        except ValueError as err:  # pyarrow's own are ValueErrors too
            raise DataError(f"{path}: column {name!r}: {err}", expected=rule.expected, do="correct the file") from err

    def _file(self, index: int) -> _OpenFile:
        """Return the open file, checked when it was opened."""
        found = self._open.pop(index, None)
        if found is None:
            path = self.files[index].path
            with _parquet_errors(path):
                # pyarrow's own files of a local disk hold no GIL while they are read.
                opened = path if is_local(self.files.storage) else self.files.storage.open(path, "rb")
                file = self._parquet.ParquetFile(opened, pre_buffer=True)
            self._check_schema(path, file.schema_arrow)
            sizes = (file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
            found = _OpenFile(file, list(accumulate(sizes, initial=0)))
        self._open[index] = found
        while len(self._open) > _FOOTERS_KEPT:
            self._open.popitem(last=False)[1].file.close(force=True)
        return found

    def _check_schema(self, path: str, schema: Any) -> None:
        for name, rule in self._rules.items():
            places = schema.get_all_field_indices(name)
            if len(places) != 1:
                raise DataError(
                    f"{path}: {'no column' if not places else f'{len(places)} columns'} {name!r}",
                    expected=f"one column {name!r} of {rule.expected}",
                    do=f"its columns are {', '.join(schema.names[:50])}",
                )
            found = schema.field(name).type
            if not rule.accepts(found):
                raise DataError(
                    f"{path}: column {name!r} is of type {found}",
                    expected=rule.expected,
                    do="write the file with that type",
                )


@contextmanager
def _parquet_errors(path: str) -> Iterator[None]:
    """Raise typed errors for what storage and pyarrow raise while a file is read."""
    import pyarrow as pa

    with reading_errors(path):
        try:
            yield
        except (FileNotFoundError, PermissionError):
            raise
        except (pa.ArrowException, OSError) as err:  # of a file that is cut off, pyarrow raises an OSError
            if isinstance(err, OSError) and err.errno is not None:
                raise  # the operating system's or the store's
            raise DataError(
                f"{path}: damaged Parquet data: {str(err).strip()[:300]}",
                expected="a whole Parquet file",
                do="fetch or write the file again",
            ) from err


def pyarrow_parquet(path: str) -> Any:
    """Return the module. Raises: ConfigError: it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as err:
        raise ConfigError(
            f"{path} is a Parquet file, and pyarrow is not installed",
            expected="pyarrow, an extra of ett",
            do="pip install 'ett[parquet]'",
        ) from err
    return pyarrow.parquet


def _cut(columns: Columns, begin: int, end: int) -> Columns:
    return {name: _cut_column(column, begin, end) for name, column in columns.items()}


def _cut_column(column: Column, begin: int, end: int) -> Column:
    if not isinstance(column, Jagged):
        return column[begin:end]
    before, ending = int(column.lengths[:begin].sum()), int(column.lengths[:end].sum())
    return Jagged(column.values[before:ending], column.lengths[begin:end])
