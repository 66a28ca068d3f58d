"""Rows of Parquet files with a label: a row is malformed where its label is neither 0 nor 1."""

from __future__ import annotations

from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.columns import Columns, Jagged, take_rows
from ett.trainer.data.input_files import InputFiles
from ett.trainer.data.parquet_source import ColumnRule, ParquetSource, ParquetWindow
from ett.trainer.data.position import Position
from ett.trainer.data.row_source import Fault


class LabelledParquet:
    """Implements `RowSource`."""

    reads_single_rows = False

    def __init__(self, files: InputFiles, rules: Mapping[str, ColumnRule], label: str) -> None:
        self.files, self.columns = files, tuple(rules)
        self._source, self._rules, self._label = ParquetSource(files, rules), rules, label

    def windows(self, num_rows: int, start: Position) -> Generator[ParquetWindow, None, None]:
        return self._source.windows(num_rows, start)

    def take(self, window: ParquetWindow, rows: NDArray[np.int64]) -> tuple[Columns, NDArray[np.int64]]:
        return take_rows(self._source.load(window), rows), self.states(window)[rows]

    def states(self, window: ParquetWindow) -> NDArray[np.int64]:
        columns = self._source.load(window)
        if window.states is None:
            label = columns[self._label]
            assert not isinstance(label, Jagged)
            window.states = np.zeros(len(label), np.int64)
            window.states[np.isnan(label)] = 1
        return window.states

    def empty(self) -> Columns:
        return {name: rule.empty() for name, rule in self._rules.items()}

    def fault(self, window: ParquetWindow, row: int) -> Fault:
        where = f"{self.files[window.start.file].path}: row {window.start.offset + row} (from 0)"
        return Fault(where, f"column {self._label!r} is neither 0 nor 1", self._rules[self._label].expected)
