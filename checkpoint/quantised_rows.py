"""Rows of float32 weights in 8 or 4 bits an element: lossy, and only where a recipe asks for it.

A row is stored as float32 lo, float32 hi, then a code of b bits for each element (of 4 bits: two in a byte, the first
in the low half, zeros after the last). With M = 2^b - 1 and all arithmetic in float64, code q stands for

    lo if q is 0, hi if q is M, else float32(lo + q * ((hi - lo) / M))

In 8 bits lo and hi are the row's least and greatest elements, and an element is off by half a step, (hi - lo) / M / 2,
at most, but for rounding to float32. In 4 bits the range shrinks, a bin at a time from the side that leaves the lower
squared error, as long as that pays (the adaptive asymmetric quantisation of Check-N-Run, NSDI 2022). Both ends of a row
are elements that come back bit for bit, so a row that came back is stored as it was: errors do not add up over saves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.digest import ColumnGroup
from ett.errors import ConfigError
from ett.section import nearest

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
BITS = (8, 4)
CODECS = {8: 3, 4: 4}  # of blocks of such rows, in a segment's index
END_BYTES = 8  # lo and hi
_CHUNK = 1 << 17  # elements that are worked on at once: they stay in the cache
_BINS, _MOST_BINS = 32, 12  # of a row's range in 4 bits, and how many of them may go
_NARROW = 4  # steps shorter than so many units in the last place need a look at both neighbours


@dataclass(frozen=True, slots=True)
class WeightBits:
    """In how many bits an element of tables' weights is stored; 0: as it is."""

    default: int = 0
    of_table: Mapping[str, int] = field(default_factory=dict)  # by name, for those that differ

    @classmethod
    def of_tables(cls, default: int, of_table: Mapping[str, int], names: Collection[str]) -> WeightBits:
        """Args: names: of all tables that there are. Raises: ConfigError: `of_table` has another."""
        for name in of_table:
            if name not in names:
                raise ConfigError(
                    f"checkpoint.quantise_tables has {name!r}, and no table is named so", expected=nearest(name, names)
                )
        return cls(default, of_table)

    def of(self, table: str) -> int:
        return self.of_table.get(table, self.default)


EXACT = WeightBits()


def bits_of(group: ColumnGroup, asked: int) -> int:
    """Return in how many bits weights are stored; 0: as they are, because they are no float32, or would not shrink."""
    is_smaller = group.dtype == "float32" and asked and stored_row_bytes(group, asked) < group.row_bytes
    return asked if is_smaller else 0


def stored_row_bytes(group: ColumnGroup, bits: int) -> int:
    return END_BYTES + -(-group.width * bits // 8) if bits else group.row_bytes


def first_unfit(rows: Bytes) -> int | None:
    """Return the first of some rows of float32, uint8 [N, 4 * width], that has an element which is not finite."""
    for start, part in _chunks(rows.view(np.float32)):
        fit = np.isfinite(part).all(axis=1)
        if not fit.all():
            return start + int(np.argmin(fit))
    return None


def quantise(rows: Bytes, bits: int) -> Bytes:
    """Return rows, uint8 [N, 4 * width] of finite float32, as they are stored: uint8 [N, stored_row_bytes]."""
    values = rows.view(np.float32)
    stored = np.empty((len(rows), END_BYTES + -(-values.shape[1] * bits // 8)), np.uint8)
    for start, part in _chunks(values):
        low, high = part.min(axis=1, keepdims=True), part.max(axis=1, keepdims=True)
        if bits == 4:
            low, high = _narrowed(part, low, high)
        codes = _codes(part, low, high, bits)
        into = stored[start : start + len(part)]
        into[:, :END_BYTES] = np.concatenate([low, high], axis=1).astype("<f4").view(np.uint8)
        into[:, END_BYTES:] = _packed(codes) if bits == 4 else codes
    return stored


def restored(stored: Bytes, width: int, bits: int) -> Bytes:
    """Return rows as they come back, uint8 [N, 4 * width] of float32, from what `quantise` made."""
    values = np.empty((len(stored), width), np.float32)
    ends = np.ascontiguousarray(stored[:, :END_BYTES]).view("<f4").astype(np.float32, copy=False)
    for start, part in _chunks(values):
        rows = slice(start, start + len(part))
        codes = stored[rows, END_BYTES:]
        part[:] = _values(_unpacked(codes, width) if bits == 4 else codes, ends[rows, :1], ends[rows, 1:], bits)
    return values.view(np.uint8)


def _chunks(values: Floats) -> list[tuple[int, Floats]]:
    size = max(1, _CHUNK // max(1, values.shape[1]))
    return [(start, values[start : start + size]) for start in range(0, len(values), size)]


def _step(low: Floats, high: Floats, bits: int) -> Doubles:
    step: Doubles = (high.astype(np.float64) - low) / (2**bits - 1)
    return step


def _values(codes: Bytes, low: Floats, high: Floats, bits: int) -> Floats:
    values = (codes * _step(low, high, bits) + low).astype(np.float32)
    np.copyto(values, low, where=codes == 0)
    np.copyto(values, high, where=codes == 2**bits - 1)
    return values


def _codes(values: Floats, low: Floats, high: Floats, bits: int) -> Bytes:
    """Return the nearest code of each element; those outside of [low, high] get the ends."""
    most, step = 2**bits - 1, _step(low, high, bits)
    codes = (values - low.astype(np.float64)) / np.where(step > 0, step, 1.0)
    nearest: Bytes = np.clip(np.rint(codes, out=codes), 0, most, out=codes).astype(np.uint8)
    ulp = np.spacing(np.maximum(np.abs(low), np.abs(high)))
    narrow = np.flatnonzero((step < _NARROW * ulp)[:, 0] & (step > 0)[:, 0])
    if len(narrow):
        # Several codes may stand for one float32: that which comes back nearest is not always the nearest point.
        some = (values[narrow], low[narrow], high[narrow])
        nearest[narrow] = _best_neighbours(nearest[narrow], *some, bits)
    return nearest


def _best_neighbours(codes: Bytes, values: Floats, low: Floats, high: Floats, bits: int) -> Bytes:
    best, error = codes, np.abs(_values(codes, low, high, bits) - values.astype(np.float64))
    for move in (-1, 1):
        other = np.clip(codes.astype(np.int16) + move, 0, 2**bits - 1).astype(np.uint8)
        theirs = np.abs(_values(other, low, high, bits) - values.astype(np.float64))
        best = np.where(theirs < error, other, best)
        error = np.minimum(theirs, error)
    return best


def _narrowed(values: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the ends of each row's range in 4 bits: the best that greedy steps inwards come to."""
    best, least = (low, high), _lost(values, low, high)
    left, right = low, high
    bin_width = (high.astype(np.float64) - low) / _BINS
    for _ in range(_MOST_BINS):
        from_left, from_right = (left + bin_width).astype(np.float32), (right - bin_width).astype(np.float32)
        of_left, of_right = _lost(values, from_left, right), _lost(values, left, from_right)
        goes_left = of_left < of_right
        left, right = np.where(goes_left, from_left, left), np.where(goes_left, right, from_right)
        lost = np.where(goes_left, of_left, of_right)
        best = np.where(lost < least, left, best[0]), np.where(lost < least, right, best[1])
        least = np.fmin(lost, least)
    # Exactly: a row that has been here before loses nothing with its whole range, which then stays.
    pays = _squared_error(values, *best) < _squared_error(values, low, high)
    return np.where(pays, best[0], low), np.where(pays, best[1], high)


def _squared_error(values: Floats, low: Floats, high: Floats) -> Doubles:
    lost = _values(_codes(values, low, high, 4), low, high, 4).astype(np.float64) - values
    error: Doubles = np.einsum("nd,nd->n", lost, lost)[:, None]
    return error


@np.errstate(all="ignore")  # of the largest floats: a range whose loss is not known is not taken
def _lost(values: Floats, low: Floats, high: Floats) -> Floats:
    """Return about how much a range loses of each row, squared and summed, [N, 1]."""
    step = ((high.astype(np.float64) - low) / 15).astype(np.float32)
    scaled = values - low
    scaled *= 1 / np.where(step > 0, step, np.float32(1))
    codes = np.rint(scaled)
    scaled -= np.clip(codes, 0, 15, out=codes)
    lost: Floats = np.einsum("nd,nd->n", scaled, scaled)[:, None] * step * step
    return lost


def _packed(codes: Bytes) -> Bytes:
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    packed: Bytes = codes[:, 0::2] | (codes[:, 1::2] * np.uint8(16))
    return packed


def _unpacked(packed: Bytes, width: int) -> Bytes:
    codes = np.empty((len(packed), packed.shape[1] * 2), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    return codes[:, :width]
