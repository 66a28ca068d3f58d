"""The order of rows and which are held out, by a documented integer mix: the same on any machine and version."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_HELDOUT_SALT = 0x48454C44  # not a function of a seed: what is held out is held out from every run


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 finaliser of uint64 [n] (Steele, Lea, Flood 2014)."""
    mixed = values + np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def salted(salt: int, *more: int) -> np.uint64:
    """Return one 64-bit word of the given integers."""
    word = np.zeros(1, np.uint64)
    for part in (salt, *more):
        word = mix64(word ^ np.uint64(part & (2**64 - 1)))
    return np.uint64(word[0])


def is_held_out(rows: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Return which of the row numbers [n] belong to the held-out share."""
    return mix64(rows.astype(np.uint64) ^ salted(_HELDOUT_SALT)) < np.uint64(min(int(share * 2.0**64), 2**64 - 1))


def shuffled(rows: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the row numbers [n] in the order of (seed, epoch): sorted by a mix of each."""
    keys = mix64(rows.astype(np.uint64) ^ salted(seed, epoch))
    return rows[np.argsort(keys, kind="stable")]
