"""What follows from an id alone: its owner and its initial row. All arithmetic is modulo 2^64.

With mix = the finaliser of splitmix64 (`ett.checkpoint.digest.mix`) and salt(table) = xxh3_64(table name):

    owner(table, id)       = mix(id ^ mix(salt)) mod world_size
    word(table, id, c)     = mix(mix(id ^ mix(salt ^ mix(seed))) + (c + 1) * 0x9E3779B97F4A7C15)
    weight(table, id, c)   = ((word >> 40) * 2^-23 - 1) * scale + middle     float32, a rounding each

so a row starts with the same bits whatever the order in which ids come, the tier that holds it or the world size.
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from ett.checkpoint.digest import U64, mix

Ids = NDArray[np.int64]
_GOLDEN = U64(0x9E3779B97F4A7C15)


def table_salt(table: str) -> np.uint64:
    """Return the 64-bit number that stands for a table's name."""
    return U64(xxhash.xxh3_64_intdigest(table.encode()))


def owner_key(salt: np.uint64) -> np.uint64:
    """Return mix(salt), the part of `owner` that does not depend on the id."""
    return U64(mix(np.array([salt]))[0])


def row_owner(ids: Ids, keys: NDArray[np.uint64] | np.uint64, world_size: int) -> Ids:
    """Return the rank that owns each id: int64 [N] in [0, world_size).

    Args:
        ids: int64 [N].
        keys: owner_key of each id's table, uint64 [N] or one for all.
    """
    return (mix(ids.view(U64) ^ keys) % U64(world_size)).view(np.int64)


class RowInit:
    """Initial rows of one table."""

    def __init__(self, table: str, *, seed: int, dim: int, scale: float, middle: float = 0.0) -> None:
        seed_key = mix(np.array([seed], U64))
        self.key = U64(mix(table_salt(table) ^ seed_key)[0])
        self.scale, self.middle = np.float32(scale), np.float32(middle)
        self._columns = np.arange(1, dim + 1, dtype=U64) * _GOLDEN

    def rows(self, ids: Ids) -> NDArray[np.float32]:
        """Return the initial weights of ids (int64 [N]): float32 [N, dim], uniform in middle ± scale."""
        words = mix(mix(ids.view(U64) ^ self.key)[:, None] + self._columns)
        unit = (words >> U64(40)).astype(np.float32)  # 24 bits: exact in float32, and so are the next two operations
        unit *= np.float32(2.0**-23)
        unit -= np.float32(1.0)
        unit *= self.scale
        if self.middle:
            unit += self.middle
        return unit
