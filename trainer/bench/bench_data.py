"""Figures of the input: text, gzip and Parquet to columns in one thread, beside what only unpacks or decodes them."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.trainer.data.columns import Columns, Jagged, take_rows
from ett.trainer.data.criteo import criteo_rows
from ett.trainer.data.criteo_lines import MISSING_COUNT, MISSING_ID, parse_reference
from ett.trainer.data.criteo_text import CATEGORIES, COLUMNS, COUNTS, LABEL
from ett.trainer.data.generator import criteo_lines
from ett.trainer.data.position import BEGINNING

_ROWS, _QUICK_ROWS = 1_000_000, 250_000
_WINDOW_ROWS = 65536  # as data.window_rows
_COMPARED_ROWS = 2000  # with the parser in plain Python
_PAIRS, _QUICK_PAIRS = 11, 5
_SEED = 7


def data_figures(quick: bool) -> list[Measured]:
    """Return tsv_mb_per_s_core, gzip_vs_zcat and parquet_vs_pyarrow.

    One thread, over the same generated rows, from a file in the page cache to columns. A core's rate is per second of
    its time; ratios are of wall times of peer and ours, which take turns. Raises: ThresholdMissed: the formats give
    different columns, so no time means anything.
    """
    pairs = _QUICK_PAIRS if quick else _PAIRS
    with tempfile.TemporaryDirectory(prefix="ett-bench-data-") as folder:
        files = _Files(Path(folder), _QUICK_ROWS if quick else _ROWS)
        files.check()
        return [_text_figure(files, pairs), _gzip_figure(files, pairs), _parquet_figure(files, pairs)]


class _Files:
    """The same rows in three formats."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.text, self.gzip, self.parquet = (folder / f"rows{end}" for end in (".tsv", ".tsv.gz", ".parquet"))
        self.rows = rows
        with self.text.open("wb") as text:
            text.writelines(criteo_lines(rows, _SEED))
        with self.text.open("rb") as text, gzip.open(self.gzip, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(text, packed, 1 << 20)
        self.has_parquet = _write_parquet(self.text, self.parquet)

    def check(self) -> None:
        """Raise ThresholdMissed where the formats, or the first rows by the reference, differ in a column."""
        with self.text.open("rb") as text:
            block = b"".join(text.readline() for _ in range(_COMPARED_ROWS))
        labels, counts, ids, _ = parse_reference(block, _COMPARED_ROWS)
        reference = dict(zip(COLUMNS, [labels, *counts.T, *ids.T], strict=True))
        formats = [self.gzip, *([self.parquet] if self.has_parquet else [])]
        num_rows = 0
        for text_part, *parts in zip(*map(_windows, (self.text, *formats)), strict=True):
            for path, part in zip(formats, parts, strict=True):
                _compare(text_part, part, path.name)
            if not num_rows:
                _compare(take_rows(text_part, np.arange(_COMPARED_ROWS)), reference, "the reference")
            num_rows += len(text_part[LABEL])
        if num_rows != self.rows:
            raise ThresholdMissed(f"{num_rows} rows were read of {self.rows}")


def _windows(path: Path) -> Iterator[Columns]:
    rows = criteo_rows(str(path))
    for window in rows.windows(_WINDOW_ROWS, BEGINNING):
        columns, states = rows.take(window, np.arange(window.num_rows))
        if states.any():
            raise ThresholdMissed(f"{path.name}: a well-formed row is called malformed")
        yield columns


def _compare(ours: Columns, other: Columns, name: str) -> None:
    for column in COLUMNS:
        if not np.array_equal(_array(ours, column), _array(other, column)):
            raise ThresholdMissed(f"column {column} of the text and of {name} differ")


def _array(columns: Columns, name: str) -> Any:
    column = columns[name]
    assert not isinstance(column, Jagged)
    return column


def _text_figure(files: _Files, pairs: int) -> Measured:
    megabytes = files.text.stat().st_size / 1e6
    times = [_seconds(lambda: _read_all(files.text), time.thread_time) for _ in range(pairs)]
    return Measured(name="tsv_mb_per_s_core", unit="MB/s", samples=[megabytes / seconds for seconds in times])


def _gzip_figure(files: _Files, pairs: int) -> Measured:
    name, zcat = "gzip_vs_zcat", shutil.which("zcat")
    if zcat is None:
        return Measured(name=name, unit="x", reason="no zcat on this machine")

    def peer() -> None:
        subprocess.run([zcat, files.gzip], stdout=subprocess.DEVNULL, check=True)

    return Measured(name=name, unit="x", samples=_ratios(peer, lambda: _read_all(files.gzip), pairs))


def _parquet_figure(files: _Files, pairs: int) -> Measured:
    name = "parquet_vs_pyarrow"
    if not files.has_parquet:
        return Measured(name=name, unit="x", reason="pyarrow is not installed")
    import pyarrow.parquet as pq

    def peer() -> None:
        with pq.ParquetFile(files.parquet, pre_buffer=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group, columns=list(COLUMNS), use_threads=False)

    return Measured(name=name, unit="x", samples=_ratios(peer, lambda: _read_all(files.parquet), pairs))


def _read_all(path: Path) -> None:
    """Make columns of every row, checked, in this thread."""
    rows = criteo_rows(str(path))
    for window in rows.windows(_WINDOW_ROWS, BEGINNING):
        rows.states(window)


def _ratios(peer: Callable[[], None], ours: Callable[[], None], pairs: int) -> Sequence[float]:
    """Return peer's time over ours, pair by pair; every other pair the other way round."""
    found = []
    for pair in range(pairs):
        if pair % 2:
            of_peer, of_ours = _seconds(peer), _seconds(ours)
        else:
            of_ours, of_peer = _seconds(ours), _seconds(peer)
        found.append(of_peer / of_ours)
    return found


def _seconds(work: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    begun = clock()
    work()
    return clock() - begun


def _write_parquet(text: Path, path: Path) -> bool:
    """Write the rows with nulls where fields are missing; return False where there is no pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return False
    missing = {LABEL: -1.0} | dict.fromkeys(COUNTS, MISSING_COUNT) | dict.fromkeys(CATEGORIES, MISSING_ID)
    rows = criteo_rows(str(text))
    writer = None
    for window in rows.windows(_WINDOW_ROWS, BEGINNING):
        columns, _ = rows.take(window, np.arange(window.num_rows))
        arrays = {name: _array(columns, name) for name in COLUMNS}
        table = pa.table({name: pa.array(array, mask=array == missing[name]) for name, array in arrays.items()})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return True
