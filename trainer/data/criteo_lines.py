"""Criteo lines -> columns: label, 13 counts, 26 hex categories, tab-separated, empty where missing.

The native parser (`_criteo.cpp`) does the work; `parse_reference` is the same in plain Python, for machines without the
extension and for the test that compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ett.native import native

NUM_COUNTS, NUM_CATEGORIES = 13, 26
NUM_FIELDS = 1 + NUM_COUNTS + NUM_CATEGORIES
MISSING_ID = 1 << 32  # categories are 32-bit, so a missing one has an id of its own
MISSING_COUNT = -(1 << 63)
_FIELD_COUNT, _LABEL, _COUNT, _CATEGORY = 1, 2, 3, 4
_EXPECTED = {
    _LABEL: "0 or 1",
    _COUNT: "an integer of at most 18 digits, or nothing",
    _CATEGORY: "at most 8 hexadecimal digits, or nothing",
}

Parsed = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class CriteoLines:
    """Columns of n lines. A malformed line has a state that is not 0, and no meaning in the other arrays.

    labels float32 [n]; counts int64 [n, 13], MISSING_COUNT where missing; ids int64 [n, 26], MISSING_ID where missing;
    states int64 [n].
    """

    labels: NDArray[np.float32]
    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    states: NDArray[np.int64]


def parse_lines(block: bytes, num_lines: int) -> CriteoLines:
    """Parse the first `num_lines` lines of a block; the last may lack its line feed, and a line may end in CR LF."""
    return CriteoLines(*_parse(block, num_lines))


def parse_rows(block: bytes, starts: NDArray[np.int64], wanted: NDArray[np.int64]) -> CriteoLines:
    """Parse the lines of a block that begin at starts[wanted], and no others."""
    return CriteoLines(*_parse_rows(block, starts, wanted))


def line_starts(block: bytes, num_lines: int) -> NDArray[np.int64]:
    """Return where each of the first lines of a block begins: int64 [num_lines]."""
    return np.concatenate([np.zeros(1, np.int64), line_feeds(block) + 1])[:num_lines]


def dense_features(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return sign(x) * log(1 + |x|) of counts [n, 13] as float32; a missing count is 0."""
    known = np.where(counts == MISSING_COUNT, 0, counts)
    features: NDArray[np.float32] = (np.sign(known) * np.log1p(np.abs(known))).astype(np.float32)
    return features


def describe_fault(state: int, line: bytes) -> tuple[str, str]:
    """Return what is wrong with a malformed line, with the value, and what was expected."""
    fault, detail = state % 8, state // 8
    if fault == _FIELD_COUNT:
        return f"{detail} fields", f"{NUM_FIELDS} fields separated by tabs (label, 13 counts, 26 categories)"
    value = line.removesuffix(b"\r").split(b"\t")[detail - 1].decode("utf-8", "backslashreplace")
    return f"field {detail} is {value[:40]!r}", _EXPECTED[fault]


def parse_reference(block: bytes, num_lines: int) -> Parsed:
    """The parser in plain Python: the definition that the native one is compared with."""
    labels = np.zeros(num_lines, np.float32)
    counts = np.zeros((num_lines, NUM_COUNTS), np.int64)
    ids = np.zeros((num_lines, NUM_CATEGORIES), np.int64)
    states = np.zeros(num_lines, np.int64)
    lines = block.split(b"\n")
    if len(lines) < num_lines:
        raise ValueError("the block holds fewer lines than num_lines")
    for row, line in enumerate(lines[:num_lines]):
        states[row] = _parse_line(line.removesuffix(b"\r"), labels[row : row + 1], counts[row], ids[row])
    return labels, counts, ids, states


def _parse_line(line: bytes, label: NDArray[Any], counts: NDArray[np.int64], ids: NDArray[np.int64]) -> int:
    fields = line.split(b"\t")
    if len(fields) != NUM_FIELDS:
        return _FIELD_COUNT + 8 * len(fields)
    if fields[0] not in (b"0", b"1"):
        return _LABEL + 8 * 1
    label[0] = float(fields[0])
    for i, text in enumerate(fields[1 : 1 + NUM_COUNTS]):
        digits = text.removeprefix(b"-")
        if text and not (digits.isdigit() and len(digits) <= 18):
            return _COUNT + 8 * (2 + i)
        counts[i] = int(text) if text else MISSING_COUNT
    for i, text in enumerate(fields[1 + NUM_COUNTS :]):
        if len(text) > 8 or text.strip(b"0123456789abcdefABCDEF"):
            return _CATEGORY + 8 * (15 + i)
        ids[i] = int(text, 16) if text else MISSING_ID
    return 0


def parse_rows_reference(block: bytes, starts: NDArray[np.int64], wanted: NDArray[np.int64]) -> Parsed:
    """The definition that the native `parse_rows` is compared with."""
    if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(starts) and starts.max() <= len(block)):
        raise ValueError("a wanted line is not in the block")
    lines = [block[start:].split(b"\n", 1)[0] for start in starts[wanted].tolist()]
    return parse_reference(b"\n".join(lines), len(lines)) if lines else parse_reference(b"", 0)


def line_feeds_reference(block: bytes) -> NDArray[np.int64]:
    """The definition that the native `line_feeds` is compared with."""
    return np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))


_found = native("ett.trainer.data._criteo")
_parse: Callable[[bytes, int], Parsed] = _found.parse if _found else parse_reference
_parse_rows: Callable[[bytes, NDArray[np.int64], NDArray[np.int64]], Parsed] = (
    _found.parse_rows if _found else parse_rows_reference
)
line_feeds: Callable[[bytes], NDArray[np.int64]] = _found.line_feeds if _found else line_feeds_reference
