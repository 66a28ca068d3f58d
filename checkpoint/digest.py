"""The digest of a table: one 64-bit sum over rows that depends neither on sharding, nor order, nor file layout.

All arithmetic is modulo 2^64; `mix` is the finaliser of splitmix64:

    mix(x):  x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31

A column group is the weight ("weight") or one optimizer state ("state:<name>"). Its bytes of one row, little-endian
and zero-padded to a multiple of 8, are the words w_0 .. w_k. With

    seed(text) = xxh3_64(text),   s = seed("<table>|<group>|<dtype>|<elements per row>")
    key_j = mix(s + (2j+1) * G),  odd_j = mix(s + (2j+2) * G) | 1,   G = 0x9E3779B97F4A7C15

a row's value is a = sum over groups and j of  fold(w_j ^ key_j) * odd_j,  where
fold(x):  x ^= x >> 32;  x *= 0xD6E8FEB86659FD93;  x ^= x >> 32,  and

    digest = sum over rows of  mix(a + mix(id ^ seed("<table>|ids")))

An empty table has digest 0. Shown as 16 hexadecimal digits. Native where it is built, else numpy, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ett.checkpoint.dtypes import ITEM_BYTES
from ett.native import native

U64 = np.uint64
Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
# 32 Ki words (256 KiB) keep the three passes over a chunk in the L2 cache.
CHUNK_WORDS = 32 * 1024
G = U64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """The weight or one optimizer state of a table: `width` elements of `dtype` in every row."""

    name: str
    dtype: str
    width: int

    @property
    def row_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * self.width


def mix(values: Words) -> Words:
    """Return the splitmix64 finaliser of each value; a bijection."""
    out = values ^ (values >> U64(30))
    out *= U64(0xBF58476D1CE4E5B9)
    out ^= out >> U64(27)
    out *= U64(0x94D049BB133111EB)
    out ^= out >> U64(31)
    return out


def fold(values: Words) -> Words:
    """Return `fold` of each value; changes them."""
    values ^= values >> U64(32)
    values *= U64(0xD6E8FEB86659FD93)
    values ^= values >> U64(32)
    return values


NATIVE = native("ett.checkpoint._digest")


class TableDigest:
    """Adds up the digest of one table; parts made on different ranks are combined with `combine`."""

    def __init__(self, table: str, groups: Sequence[ColumnGroup]) -> None:
        self.value = 0
        self._id_seed = U64(xxhash.xxh3_64_intdigest(f"{table}|ids".encode()))
        self._groups = [_GroupKeys(table, group) for group in groups]
        self._chunk_rows = max(1, CHUNK_WORDS // max([1, *(keys.words for keys in self._groups)]))

    def add(self, ids: NDArray[np.int64], columns: Sequence[Bytes]) -> None:
        """Add rows: ids int64 [N]; columns uint8 [N, row_bytes] in the order of the groups, C-contiguous."""
        self.value += self.sum_of(ids, columns)

    def sum_of(self, ids: NDArray[np.int64], columns: Sequence[Bytes]) -> int:
        """Return what `add` adds, which is to be taken modulo 2^64; by several threads at a time."""
        return int(self.row_words(ids, columns).sum(dtype=U64))

    def row_words(self, ids: NDArray[np.int64], columns: Sequence[Bytes]) -> Words:
        """Return what `add` adds up, uint64 [N]: one word a row, other where the id or any byte is another."""
        if NATIVE is None:
            return np.concatenate([np.empty(0, U64), *self._in_chunks(ids, columns)])
        ids = np.ascontiguousarray(ids)
        columns = [np.ascontiguousarray(column) for column in columns]
        parts = [keys.place(column, len(ids)) for keys, column in zip(self._groups, columns, strict=True)]
        words = np.empty(len(ids), U64)
        NATIVE.row_words(address_of(ids), len(ids), int(self._id_seed), parts, address_of(words))
        return words

    def _in_chunks(self, ids: NDArray[np.int64], columns: Sequence[Bytes]) -> Iterator[Words]:
        for start in range(0, len(ids), self._chunk_rows):
            part = slice(start, start + self._chunk_rows)
            rows = mix(ids[part].view(U64) ^ self._id_seed)
            for keys, column in zip(self._groups, columns, strict=True):
                keys.add_to(rows, column[part])
            yield mix(rows)

    @property
    def hex(self) -> str:
        return f"{self.value & 0xFFFFFFFFFFFFFFFF:016x}"


def combine(parts: Sequence[str]) -> str:
    """Return the digest of the union of disjoint sets of rows from the digests of the sets."""
    return f"{sum(int(part, 16) for part in parts) & 0xFFFFFFFFFFFFFFFF:016x}"


class _GroupKeys:
    def __init__(self, table: str, group: ColumnGroup) -> None:
        self.words = -(-group.row_bytes // 8)
        self._row_bytes = group.row_bytes
        seed = U64(xxhash.xxh3_64_intdigest(f"{table}|{group.name}|{group.dtype}|{group.width}".encode()))
        counters = np.arange(1, 2 * self.words + 1, dtype=U64) * G + seed
        mixed = mix(counters)
        self._keys, self._odds = mixed[0::2].copy(), mixed[1::2] | U64(1)

    def place(self, column: Bytes, num_rows: int) -> tuple[int, int, int, int]:
        """Return what the native code needs to know of a contiguous column."""
        assert column.dtype == np.uint8 and column.shape == (num_rows, self._row_bytes), (column.dtype, column.shape)
        return address_of(column), self._row_bytes, address_of(self._keys), address_of(self._odds)

    def add_to(self, rows: Words, column: Bytes) -> None:
        if self._row_bytes % 8 or not column.flags.c_contiguous:
            padded = np.zeros((len(column), self.words * 8), np.uint8)
            padded[:, : self._row_bytes] = column
            column = padded
        rows += fold(column.reshape(len(rows), -1).view(U64) ^ self._keys) @ self._odds


def address_of(array: NDArray[Any]) -> int:
    """Return where an array's memory begins, for native code."""
    address: int = array.__array_interface__["data"][0]
    return address
