"""The digest is the documented sum, whatever the order and sharding, and any change of a bit changes it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import xxhash

from ett.checkpoint import digest as digest_module
from ett.checkpoint.digest import ColumnGroup, TableDigest, combine

GROUPS = (
    ColumnGroup("weight", "float32", 5),
    ColumnGroup("state:sum", "bfloat16", 1),
    ColumnGroup("state:n", "int64", 2),
)
MASK = (1 << 64) - 1


def plain_digest(table: str, ids: np.ndarray, columns: list[np.ndarray]) -> int:
    """The definition in digest.py's docstring, one row and word at a time."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
        return x ^ x >> 31

    def fold(x: int) -> int:
        x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & MASK
        return x ^ x >> 32

    golden, total = 0x9E3779B97F4A7C15, 0
    for row, key in enumerate(ids.tolist()):
        value = 0
        for group, column in zip(GROUPS, columns, strict=True):
            seed = xxhash.xxh3_64_intdigest(f"{table}|{group.name}|{group.dtype}|{group.width}".encode())
            data = column[row].tobytes()
            for j in range(-(-len(data) // 8)):
                word = int.from_bytes(data[8 * j : 8 * j + 8].ljust(8, b"\0"), "little")
                keyed = mix(seed + (2 * j + 1) * golden & MASK)
                odd = mix(seed + (2 * j + 2) * golden & MASK) | 1
                value += fold(word ^ keyed) * odd
        total += mix((value + mix(key & MASK ^ xxhash.xxh3_64_intdigest(f"{table}|ids".encode()))) & MASK)
    return total & MASK


def example(num_rows: int, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(2**62, num_rows, replace=False)).astype(np.int64) - 2**61
    return ids, [rng.integers(0, 256, (num_rows, group.row_bytes), np.uint8) for group in GROUPS]


def digest(ids: np.ndarray, columns: list[np.ndarray], table: str = "t") -> TableDigest:
    found = TableDigest(table, GROUPS)
    found.add(ids, columns)
    return found


def test_the_digest_is_the_documented_sum() -> None:
    ids, columns = example(50)
    assert digest(ids, columns).value == plain_digest("t", ids, columns)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_it_depends_neither_on_sharding_nor_on_order(num_ranks: int) -> None:
    ids, columns = example(20_000)
    whole = digest(ids, columns).hex
    order = np.random.default_rng(1).permutation(len(ids))
    parts = [
        digest(ids[order[rank::num_ranks]], [column[order[rank::num_ranks]] for column in columns]).hex
        for rank in range(num_ranks)
    ]
    assert combine(parts) == whole


def test_any_single_bit_changes_it() -> None:
    ids, columns = example(3)
    seen = {digest(ids, columns).value}
    for column in columns:
        flat = column.reshape(-1)
        for bit in range(flat.size * 8):
            flat[bit // 8] ^= 1 << bit % 8
            seen.add(digest(ids, columns).value)
            flat[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 1 + 3 * sum(group.row_bytes for group in GROUPS) * 8


def test_swapped_values_rows_tables_and_groups_change_it() -> None:
    ids, columns = example(40)
    swapped_rows = [column[::-1].copy() for column in columns]
    swapped_signs = columns[0].copy()
    swapped_signs[:, [3, 7]] ^= 0x80
    others = [
        digest(ids, swapped_rows),
        digest(ids, [columns[0][:, list(range(4, 20)) + list(range(4))].copy(), *columns[1:]]),
        digest(ids, [swapped_signs, *columns[1:]]),
        digest(ids + 1, columns),
        digest(ids, columns, table="u"),
        digest(ids[:-1], [column[:-1] for column in columns]),
    ]
    assert len({digest(ids, columns).hex, *(other.hex for other in others)}) == 7


def test_no_rows_are_zero() -> None:
    assert digest(*example(0)).hex == "0" * 16


@pytest.mark.slow
def test_flipping_pairs_of_sign_bits_collides_nowhere() -> None:
    """A plain multilinear sum would be weak exactly here: differences with many trailing zeros."""
    ids, columns = example(1)
    rng = random.Random(0)
    seen = set()
    pairs = [(a, b) for a in range(5) for b in range(a)]
    for _ in range(200):
        columns[0][0] = np.frombuffer(rng.randbytes(20), np.uint8)
        for a, b in pairs:
            flipped = columns[0].copy()
            flipped[0, 4 * a + 3] ^= 0x80
            flipped[0, 4 * b + 3] ^= 0x80
            seen.add(digest(ids, [flipped, *columns[1:]]).value)
    assert len(seen) == 200 * len(pairs)


@pytest.mark.skipif(digest_module.NATIVE is None, reason="not built")
@pytest.mark.parametrize("num_rows", [0, 1, 511, 1025])
def test_the_native_digest_has_the_bits_of_numpys(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, columns = example(num_rows, seed=num_rows)
    native = TableDigest("t", GROUPS).row_words(ids, columns)
    monkeypatch.setattr(digest_module, "NATIVE", None)
    assert native.tolist() == TableDigest("t", GROUPS).row_words(ids, columns).tolist()
