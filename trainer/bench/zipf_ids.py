"""Ids with a Zipf distribution: rank r of N is drawn in proportion to 1 / r^s, and ranks are spread over the ids."""

from __future__ import annotations

import numpy as np

from ett.trainer.sparse.hashing import Ids


class ZipfIds:
    def __init__(self, num_rows: int, exponent: float, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        shares = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
        self._ends = np.cumsum(shares) / shares.sum()
        self._id_of_rank = np.random.default_rng(num_rows).permutation(num_rows)

    def draw(self, count: int) -> Ids:
        """Return int64 [count]."""
        ranks = np.searchsorted(self._ends, self._random.random(count))
        ids: Ids = self._id_of_rank[np.minimum(ranks, len(self._ends) - 1)]
        return ids
