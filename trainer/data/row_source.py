"""What a format of input files offers to the order of samples: windows of rows, and the rows of a window by number."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.columns import Columns
from ett.trainer.data.input_files import InputFiles
from ett.trainer.data.position import Position


class RowWindow(Protocol):
    """Consecutive rows of one file; what it holds in memory, or when it is read, is its source's business."""

    @property
    def start(self) -> Position: ...

    @property
    def num_rows(self) -> int: ...


W = TypeVar("W", bound=RowWindow)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a row: `where` names the file and the row, `fact` the column and its value."""

    where: str
    fact: str
    expected: str


class RowSource(Protocol[W]):
    """Safe to call from several threads, but for one `windows` generator."""

    files: InputFiles
    columns: tuple[str, ...]  # names, in the order of the file
    # Text is cut and then parsed row by row; of a Parquet file, any row costs a whole row group.
    reads_single_rows: bool

    def windows(self, num_rows: int, start: Position) -> Generator[W, None, None]:
        """Yield windows of `num_rows` rows (fewer at the end of a file), beginning at `start`."""
        ...

    def take(self, window: W, rows: NDArray[np.int64]) -> tuple[Columns, NDArray[np.int64]]:
        """Return the rows of the given numbers within the window, and their states: 0 where a row is well-formed."""
        ...

    def states(self, window: W) -> NDArray[np.int64]:
        """Return the states of all rows of the window, which are read for it."""
        ...

    def empty(self) -> Columns:
        """Return columns of no row."""
        ...

    def fault(self, window: W, row: int) -> Fault:
        """Say what is wrong with the malformed row of a number within the window."""
        ...


@dataclass(frozen=True, slots=True)
class Rows(Generic[W]):
    """Rows of one window, by their numbers within it."""

    window: W
    numbers: NDArray[np.int64]

    def cut(self, begin: int, end: int) -> Rows[W]:
        return Rows(self.window, self.numbers[begin:end])
