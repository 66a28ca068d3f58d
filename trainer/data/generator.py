"""Input in Criteo's format with a planted signal: seeded, realistic in shape, learnable from the ids.

Row n is a pure function of (seed, n), so the bytes do not depend on how the rows are cut into chunks. Every draw is a
splitmix64 of (seed, column, row). Categories follow a bounded Zipf law over cardinalities like those of the Kaggle
challenge; counts are rounded log-normals with the challenge's shares of zeros and missing fields. The label's log-odds
are a sum of weights that belong to single ids of nine middle-sized columns, centred so that the click rate stays near
one in four. Neither the counts nor the small columns carry any of it: only a model that learns rows for ids can see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.order import mix64, salted

GENERATOR_VERSION = 1  # part of the file's name: a change of the output needs a new one
# Distinct values of C1..C26 in the challenge's training file, as its public users report them.
CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
CATEGORY_MISSING = (
    *(0, 0, 0.03, 0.03, 0, 0.12, 0, 0, 0, 0, 0, 0.03, 0, 0, 0, 0.03, 0, 0),
    *(0.44, 0.44, 0.03, 0.76, 0, 0.03, 0.44, 0.44),
)


@dataclass(frozen=True, slots=True)
class _Count:
    """One integer column: shares of missing, zero and negative fields, and the log-normal of the others."""

    missing: float
    zero: float
    negative: float
    log_mean: float
    log_sd: float


_COUNTS = (
    _Count(0.45, 0.47, 0.0, 1.5, 0.9),
    _Count(0.0, 0.18, 0.11, 3.0, 1.8),
    _Count(0.22, 0.01, 0.0, 2.2, 1.3),
    _Count(0.22, 0.09, 0.0, 1.9, 0.9),
    _Count(0.03, 0.02, 0.0, 7.4, 2.4),
    _Count(0.22, 0.07, 0.0, 3.9, 1.5),
    _Count(0.04, 0.25, 0.0, 2.0, 1.1),
    _Count(0.001, 0.12, 0.0, 2.3, 1.0),
    _Count(0.04, 0.03, 0.0, 3.7, 1.5),
    _Count(0.45, 0.50, 0.0, 0.1, 0.4),
    _Count(0.04, 0.27, 0.0, 1.0, 0.5),
    _Count(0.77, 0.72, 0.0, 0.6, 0.7),
    _Count(0.22, 0.06, 0.0, 2.0, 1.0),
)
_ZIPF_EXPONENT = 1.05
_SIGNAL_COLUMNS = (0, 1, 4, 6, 7, 10, 12, 17, 18)  # by index from 0: C1, C2, C5, C7, C8, C11, C13, C18, C19
_SIGNAL_SD = 0.75  # of one id's weight; nine columns give log-odds with a standard deviation near 2
_BIAS = -1.85  # of the log-odds: a click rate of 0.24 to 0.26, by seed
_CHUNK_ROWS = 1 << 14  # measured: 8 to 32 thousand are within a tenth, smaller ones lose a fifth
# Salts of the independent draws.
_CATEGORY, _CATEGORY_GAP, _COUNT_KIND, _COUNT_U, _COUNT_V, _WEIGHT_U, _WEIGHT_V, _ID, _LABEL = range(1, 10)


def criteo_lines(rows: int, seed: int) -> Iterator[bytes]:
    """Yield `rows` lines of Criteo's format in chunks of whole lines."""
    for first in range(0, rows, _CHUNK_ROWS):
        numbers = np.arange(first, min(first + _CHUNK_ROWS, rows), dtype=np.uint64)
        yield _chunk(numbers, seed)


def _chunk(rows: NDArray[np.uint64], seed: int) -> bytes:
    log_odds = np.full(len(rows), _BIAS)
    categories: list[_Field] = []
    for column, cardinality in enumerate(CARDINALITIES):
        rank = zipf_ranks(draw_uniform(rows, seed, _CATEGORY, column), cardinality)
        is_missing = draw_uniform(rows, seed, _CATEGORY_GAP, column) < CATEGORY_MISSING[column]
        if column in _SIGNAL_COLUMNS:
            log_odds += np.where(is_missing, 0.0, _weights(seed, column)[rank])
        categories.append(_hex_field(mix64(rank.astype(np.uint64) ^ salted(seed, _ID, column)), is_missing))
    clicked = draw_uniform(rows, seed, _LABEL, 0) < 1.0 / (1.0 + np.exp(-log_odds))
    counts = [_count_field(rows, seed, column, count) for column, count in enumerate(_COUNTS)]
    label = (clicked[:, None] + ord("0")).astype(np.uint8), np.ones((len(rows), 1), bool)
    return _lines([label, *counts, *categories])


_Field = tuple[NDArray[np.uint8], NDArray[np.bool_]]  # characters [n, width], and which of them are written


def _lines(columns: list[_Field]) -> bytes:
    num_rows = len(columns[0][0])
    width = sum(text.shape[1] for text, _ in columns) + len(columns)
    characters = np.empty((num_rows, width), np.uint8)
    written = np.ones((num_rows, width), bool)
    at = 0
    for text, is_written in columns:
        characters[:, at : at + text.shape[1]] = text
        written[:, at : at + text.shape[1]] = is_written
        at += text.shape[1]
        characters[:, at] = ord("\t")
        at += 1
    characters[:, -1] = ord("\n")
    return characters[written].tobytes()


def _hex_field(values: NDArray[np.uint64], is_missing: NDArray[np.bool_]) -> _Field:
    pairs = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
    big_endian = (values & np.uint64(0xFFFFFFFF)).astype(">u4").view(np.uint8).reshape(len(values), 4)
    text = pairs[big_endian].reshape(len(values), 8)
    return text, np.broadcast_to(~is_missing[:, None], text.shape)


def _count_field(rows: NDArray[np.uint64], seed: int, column: int, count: _Count) -> _Field:
    kind = draw_uniform(rows, seed, _COUNT_KIND, column)
    present = (kind - count.missing) / (1.0 - count.missing)
    drawn = np.exp(count.log_mean + count.log_sd * draw_normal(rows, seed, _COUNT_U, _COUNT_V, column))
    value = np.minimum(np.ceil(drawn), 9_999_999).astype(np.int64)
    value = np.where(present < count.zero, 0, value)
    value = np.where((present >= count.zero) & (present < count.zero + count.negative), -1, value)
    return _decimal_field(value, kind < count.missing)


def _decimal_field(value: NDArray[np.int64], is_missing: NDArray[np.bool_]) -> _Field:
    powers = 10 ** np.arange(6, -1, -1, dtype=np.int32)
    magnitude = np.abs(value).astype(np.int32)[:, None]  # at most 9,999,999; half the time of int64
    digits = (magnitude // powers % 10 + ord("0")).astype(np.uint8)
    is_digit = (magnitude >= powers) | (powers == 1)
    text = np.concatenate([np.full((len(value), 1), ord("-"), np.uint8), digits], axis=1)
    written = np.concatenate([(value < 0)[:, None], is_digit], axis=1)
    return text, written & ~is_missing[:, None]


def zipf_ranks(uniform: NDArray[np.float64], cardinality: int) -> NDArray[np.int64]:
    """Return ranks from 0 of a bounded power law: the inverse of its continuous distribution function, rounded down."""
    shape = 1.0 - _ZIPF_EXPONENT
    top = float(cardinality + 1) ** shape
    ranks = (1.0 - uniform * (1.0 - top)) ** (1.0 / shape) - 1.0
    below: NDArray[np.int64] = np.minimum(ranks.astype(np.int64), cardinality - 1)
    return below


@cache
def _weights(seed: int, column: int) -> NDArray[np.float64]:
    """Return the log-odds weight of each rank of a column, with mean zero under its Zipf law."""
    ranks = np.arange(CARDINALITIES[column], dtype=np.uint64)
    weights = _SIGNAL_SD * draw_normal(ranks, seed, _WEIGHT_U, _WEIGHT_V, column)
    edges = np.arange(1.0, CARDINALITIES[column] + 2.0) ** (1.0 - _ZIPF_EXPONENT)
    share = (edges[:-1] - edges[1:]) / (edges[0] - edges[-1])
    centred: NDArray[np.float64] = weights - float((weights * share).sum())
    return centred


def draw_uniform(numbers: NDArray[np.uint64], seed: int, salt: int, column: int) -> NDArray[np.float64]:
    """Return float64 [n] in [0, 1) with 53 random bits."""
    drawn: NDArray[np.float64] = (mix64(numbers ^ salted(seed, salt, column)) >> np.uint64(11)).astype(np.float64)
    return drawn * 2.0**-53


def draw_normal(numbers: NDArray[np.uint64], seed: int, salt_u: int, salt_v: int, column: int) -> NDArray[np.float64]:
    """Return standard normals (Box and Muller)."""
    u, v = draw_uniform(numbers, seed, salt_u, column), draw_uniform(numbers, seed, salt_v, column)
    radius: NDArray[np.float64] = np.sqrt(-2.0 * np.log1p(-u))
    return radius * np.cos(2.0 * np.pi * v)
