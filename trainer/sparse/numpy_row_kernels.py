"""The reference of `_rows.cpp`, in numpy, and what a source tree without a compiler uses: the same bits.

Every operation is one float32 rounding, in the order that is written here.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_sums import RowSums

Floats = NDArray[np.float32]
_LANES = 16


def sum_rows(sums: RowSums, out: Tensor, *, mean: bool = False, threads: int = 1) -> None:
    total = _summed(sums)
    if mean:
        total /= np.maximum(np.diff(sums.starts_S), 1).astype(np.float32)[:, None]
    out.copy_(torch.from_numpy(total))


def add_rows(out: Tensor, rows: Ids, parts: Tensor, *, threads: int = 1) -> None:
    out[torch.from_numpy(rows)] += parts


def copy_rows(source: Tensor, rows: Ids | None, out: Tensor, to: Ids | None, *, threads: int = 1) -> None:
    read = source if rows is None else source[torch.from_numpy(rows)]
    if to is None:
        out.copy_(read)
    else:
        out[torch.from_numpy(to)] = read


def group_ids(ids: Ids) -> tuple[Ids, Ids]:
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    is_first = np.ones(len(ids), np.bool_)
    np.not_equal(sorted_ids[1:], sorted_ids[:-1], out=is_first[1:])
    return order, np.append(np.flatnonzero(is_first), len(ids))


def sgd(weights: Tensor, rows: Ids | None, grads: RowSums, rate: float, *, threads: int = 1) -> None:
    table, at, g = weights.numpy(), _at(rows, grads), _summed(grads)
    table[at] -= np.float32(rate) * g


def adagrad(
    weights: Tensor, rows: Ids | None, grads: RowSums, rate: float, *, eps: float, total: Tensor, threads: int = 1
) -> None:
    table, sums, at, g = weights.numpy(), total.numpy(), _at(rows, grads), _summed(grads)
    sums[at] += g * g
    table[at] -= (np.float32(rate) * g) / (np.sqrt(sums[at]) + np.float32(eps))


def rowwise_adagrad(
    weights: Tensor, rows: Ids | None, grads: RowSums, rate: float, *, eps: float, total: Tensor, threads: int = 1
) -> None:
    table, sums, at, g = weights.numpy(), total.numpy().reshape(-1), _at(rows, grads), _summed(grads)
    sums[at] += _mean_square(g)
    rates = np.float32(rate) / (np.sqrt(sums[at]) + np.float32(eps))
    table[at] -= rates[:, None] * g


def adam(
    weights: Tensor,
    rows: Ids | None,
    grads: RowSums,
    *,
    betas: tuple[float, float],
    eps: float,
    moments: tuple[Tensor, Tensor],
    corrections: tuple[Tensor, Tensor],
    threads: int = 1,
) -> None:
    table, at, g = weights.numpy(), _at(rows, grads), _summed(grads)
    mean, square = (moment.numpy() for moment in moments)
    size, root = (correction.numpy()[:, None] for correction in corrections)
    mean[at] += np.float32(1.0 - betas[0]) * (g - mean[at])
    square[at] = np.float32(betas[1]) * square[at] + (np.float32(1.0 - betas[1]) * g) * g
    table[at] -= (size * mean[at]) / (np.sqrt(square[at]) / root + np.float32(eps))


def _summed(sums: RowSums) -> Floats:
    """Return [S, dim]: the n-th summand of every sum that has one is added in round n."""
    total = np.zeros((sums.count, sums.dim), np.float32)
    if not len(sums.rows_L):
        return total
    extent = int(sums.rows_L.max()) * sums.stride + sums.dim
    elements = torch.as_strided(sums.source, (extent,), (1,)).numpy()
    begins, lengths = sums.starts_S[:-1], np.diff(sums.starts_S)
    weights = None if sums.weights_L is None else sums.weights_L.numpy()
    for n in range(int(lengths.max())):
        has = np.flatnonzero(lengths > n)
        at = begins[has] + n
        rows = elements[sums.rows_L[at][:, None] * sums.stride + np.arange(sums.dim)]
        total[has] += rows if weights is None else rows * weights[at][:, None]
    return total


def _mean_square(rows: Floats) -> Floats:
    """Return the mean square of each row: sixteen sums, of the columns with one number modulo 16, added in halves."""
    padded = np.zeros((len(rows), -(-rows.shape[1] // _LANES) * _LANES), np.float32)
    padded[:, : rows.shape[1]] = rows * rows
    lanes = np.zeros((len(rows), _LANES), np.float32)
    for block in np.split(padded, padded.shape[1] // _LANES, axis=1):
        lanes += block
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0] / np.float32(rows.shape[1])


def _at(rows: Ids | None, grads: RowSums) -> Ids:
    return np.arange(grads.count) if rows is None else rows
