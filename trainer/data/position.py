"""Where reading is: a bookmark in the files, and how many samples of all ranks lie before it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """Where a window begins; all zero is the beginning."""

    file: int = 0
    offset: int = 0  # of a text file: bytes of it unpacked; of a Parquet file: rows
    first_line: int = 0  # the first row's number from 0 in its file
    first_row: int = 0  # and over all files


BEGINNING = Position()


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where the next sample is: `taken` training rows of the windows that begin at `start` are consumed."""

    epoch: int = 0
    start: Position = BEGINNING
    taken: int = 0
    bad_rows: int = 0  # of this epoch, before the window


@dataclass(frozen=True, slots=True)
class Cursor:
    """How many samples of all ranks are consumed, over all epochs.

    `bookmark` says where that is, so that nothing is counted to find it; where it is None it is found by counting.
    """

    samples: int = 0
    bookmark: Bookmark | None = None

    @staticmethod
    def beginning() -> Cursor:
        return Cursor(0, Bookmark())
