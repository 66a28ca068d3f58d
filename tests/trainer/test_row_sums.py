from __future__ import annotations

import numpy as np
import pytest
import torch

from ett.trainer.sparse import row_kernels
from ett.trainer.sparse.row_sums import RowSums

LENGTHS = [2, 0, 3, 1, 0, 4]


def sums_of(*, is_weighted: bool) -> RowSums:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 5, sum(LENGTHS))
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    source = torch.from_numpy(rng.standard_normal((5, 3), np.float32))
    weights = torch.from_numpy(rng.random(len(rows), np.float32)) if is_weighted else None
    return RowSums(source, 3, 3, rows, starts, weights)


def summed(sums: RowSums) -> torch.Tensor:
    out = torch.full((sums.count, 3), torch.nan)
    row_kernels.sum_rows(sums, out)
    return out


@pytest.mark.parametrize("is_weighted", [False, True])
def test_some_sums_are_those_of_the_whole(is_weighted: bool) -> None:
    whole = sums_of(is_weighted=is_weighted)
    every = summed(whole)
    for numbers in ([], [1], [5, 0, 2], [2, 2, 4]):
        assert torch.equal(summed(whole.at(np.array(numbers, np.int64))), every[numbers])
    for begin, end in ((0, 6), (2, 4), (3, 3)):
        assert torch.equal(summed(whole.between(begin, end)), every[begin:end])
