"""Criteo's lines as rows of named columns: label, I1..I13, C1..C26."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.columns import Columns
from ett.trainer.data.criteo_lines import (
    NUM_CATEGORIES,
    NUM_COUNTS,
    CriteoLines,
    describe_fault,
    parse_lines,
    parse_rows,
)
from ett.trainer.data.input_files import InputFiles
from ett.trainer.data.position import Position
from ett.trainer.data.row_source import Fault
from ett.trainer.data.text_source import TextSource, TextWindow

LABEL = "label"
COUNTS = tuple(f"I{n}" for n in range(1, NUM_COUNTS + 1))
CATEGORIES = tuple(f"C{n}" for n in range(1, NUM_CATEGORIES + 1))
COLUMNS = (LABEL, *COUNTS, *CATEGORIES)


@dataclass(frozen=True)
class CriteoWindow:
    text: TextWindow

    @property
    def start(self) -> Position:
        return self.text.start

    @property
    def num_rows(self) -> int:
        return self.text.num_rows

    @cached_property
    def lines(self) -> CriteoLines:
        """Every line of the window, parsed when first asked for."""
        return parse_lines(self.text.block, self.num_rows)


class CriteoText:
    """Implements `RowSource`."""

    columns = COLUMNS
    reads_single_rows = True

    def __init__(self, files: InputFiles) -> None:
        self.files = files
        self._text = TextSource(files)

    def windows(self, num_rows: int, start: Position) -> Generator[CriteoWindow, None, None]:
        with closing(self._text.windows(num_rows, start)) as windows:
            for window in windows:
                yield CriteoWindow(window)

    def take(self, window: CriteoWindow, rows: NDArray[np.int64]) -> tuple[Columns, NDArray[np.int64]]:
        if "lines" in vars(window):  # they were parsed to find the malformed ones
            all_lines = window.lines
            lines = CriteoLines(
                all_lines.labels[rows], all_lines.counts[rows], all_lines.ids[rows], all_lines.states[rows]
            )
        else:
            lines = parse_rows(window.text.block, window.text.line_starts, rows)
        return _columns(lines), lines.states

    def states(self, window: CriteoWindow) -> NDArray[np.int64]:
        return window.lines.states

    def empty(self) -> Columns:
        return _columns(parse_lines(b"", 0))

    def fault(self, window: CriteoWindow, row: int) -> Fault:
        line = window.text.block.split(b"\n", row + 1)[row]
        fact, expected = describe_fault(int(window.lines.states[row]), line)
        return Fault(f"{self.files[window.start.file].path}:{window.start.first_line + row + 1}", fact, expected)


def _columns(lines: CriteoLines) -> Columns:
    """Return views of the parsed lines by name."""
    counts = zip(COUNTS, lines.counts.T, strict=True)
    return {LABEL: lines.labels, **dict(counts), **dict(zip(CATEGORIES, lines.ids.T, strict=True))}
