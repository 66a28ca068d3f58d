"""Work on rows of float32 tables on the host: native where it is built, else numpy, with the same bits.

Rows are numbers of a contiguous [N, D] table and must be in range; whoever looks up ids has checked them. Calls hold no
GIL and use up to `threads` threads, which change no bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ett.native import native
from ett.trainer.sparse import numpy_row_kernels as reference
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.row_sums import RowSums

NATIVE = native("ett.trainer.sparse._rows")


def sum_rows(sums: RowSums, out: Tensor, *, mean: bool = False, threads: int = 1) -> None:
    """Write the sums to out, float32 [S, dim] with adjacent columns; `mean` divides each by its number of rows."""
    _check_rows(out, sums.count, sums.dim)
    if NATIVE is None:
        return reference.sum_rows(sums, out, mean=mean)
    NATIVE.sum_rows(_parts(sums), _address(out), out.stride(0), mean, threads)
    return None


def add_rows(out: Tensor, rows: Ids, parts: Tensor, *, threads: int = 1) -> None:
    """Add parts (float32 [n, D], contiguous) to the distinct rows of out."""
    _check_rows(parts, len(rows), out.shape[1])
    if NATIVE is None:
        return reference.add_rows(out, rows, parts)
    NATIVE.add_rows(_address(out), out.stride(0), _pointer(rows), _address(parts), len(rows), parts.shape[1], threads)
    return None


def copy_rows(source: Tensor, rows: Ids | None, out: Tensor, to: Ids | None, *, threads: int = 1) -> None:
    """Copy rows of source (all where None) to the distinct rows `to` of out (all where None)."""
    counts = {len(source) if rows is None else len(rows), len(out) if to is None else len(to)}
    assert len(counts) == 1 and source.shape[1] == out.shape[1]
    assert all(not rows.numel() or rows.shape[1] == 1 or rows.stride(1) == 1 for rows in (source, out))
    if NATIVE is None:
        return reference.copy_rows(source, rows, out, to)
    read, write = (0 if numbers is None else _pointer(numbers) for numbers in (rows, to))
    places = (_address(source), source.stride(0), read, _address(out), out.stride(0), write)
    NATIVE.copy_rows(*places, counts.pop(), out.shape[1], threads)
    return None


def group_ids(ids: Ids) -> tuple[Ids, Ids]:
    """Return the positions by (id, position), int64 [L], and where each of the U distinct ids begins: int64 [U + 1]."""
    if NATIVE is None:
        return reference.group_ids(ids)
    assert ids.dtype == np.int64
    ids = np.ascontiguousarray(ids)
    order, starts = np.empty(len(ids), np.int64), np.empty(len(ids) + 1, np.int64)
    num_distinct = NATIVE.group_ids(_pointer(ids), len(ids), _pointer(order), _pointer(starts))
    return order, starts[: num_distinct + 1]


def sgd(weights: Tensor, rows: Ids | None, grads: RowSums, rate: float, *, threads: int = 1) -> None:
    """w -= rate * g, for the distinct rows (all where None) and the sums of their gradients."""
    _check_table(weights, rows, grads)
    if NATIVE is None:
        return reference.sgd(weights, rows, grads, rate)
    NATIVE.sgd(_address(weights), _pointer(rows), _parts(grads), rate, threads)
    return None


def adagrad(
    weights: Tensor, rows: Ids | None, grads: RowSums, rate: float, *, eps: float, total: Tensor, threads: int = 1
) -> None:
    """total += g * g; w -= (rate * g) / (sqrt(total) + eps)."""
    _check_table(weights, rows, grads, total)
    if NATIVE is None:
        return reference.adagrad(weights, rows, grads, rate, eps=eps, total=total)
    NATIVE.adagrad(_address(weights), _pointer(rows), _parts(grads), rate, eps, _address(total), threads)
    return None


def rowwise_adagrad(
    weights: Tensor, rows: Ids | None, grads: RowSums, rate: float, *, eps: float, total: Tensor, threads: int = 1
) -> None:
    """total += mean(g * g); w -= (rate / (sqrt(total) + eps)) * g, with total of width 1."""
    _check_table(weights, rows, grads)
    assert total.numel() == len(weights) and total.is_contiguous() and total.dtype == torch.float32
    if NATIVE is None:
        return reference.rowwise_adagrad(weights, rows, grads, rate, eps=eps, total=total)
    NATIVE.rowwise_adagrad(_address(weights), _pointer(rows), _parts(grads), rate, eps, _address(total), threads)
    return None


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
    """m += (1 - beta1) * (g - m); v = beta2 * v + ((1 - beta2) * g) * g; w -= (size * m) / (sqrt(v) / root + eps).

    Args:
        moments: m and v, of the table's shape.
        corrections: size and root, float32 [S], one of each for every sum: rate / (1 - beta1^t) and
            sqrt(1 - beta2^t), for the row's t-th step.
    """
    _check_table(weights, rows, grads, *moments)
    assert all(len(c) == grads.count and c.dtype == torch.float32 and c.is_contiguous() for c in corrections)
    if NATIVE is None:
        return reference.adam(weights, rows, grads, betas=betas, eps=eps, moments=moments, corrections=corrections)
    NATIVE.adam(
        _address(weights),
        _pointer(rows),
        _parts(grads),
        1.0 - betas[0],
        betas[1],
        1.0 - betas[1],
        eps,
        *(_address(tensor) for tensor in (*moments, *corrections)),
        threads,
    )
    return None


def _parts(sums: RowSums) -> tuple[int, int, int, int, int, int, int]:
    weights = 0 if sums.weights_L is None else _address(sums.weights_L)
    rows, starts = _pointer(sums.rows_L), _pointer(sums.starts_S)
    return _address(sums.source), sums.stride, rows, starts, weights, sums.count, sums.dim


def _address(tensor: Tensor) -> int:
    # Native code would follow another device's address, or none, into a segmentation fault.
    assert tensor.is_cpu, f"a tensor on {tensor.device} was given to the host's row kernels"
    pointer: int = tensor.data_ptr()
    return pointer


def _pointer(numbers: Ids | None) -> int:
    if numbers is None:
        return 0
    assert numbers.dtype == np.int64 and numbers.flags.c_contiguous
    address: int = numbers.__array_interface__["data"][0]  # a fifth of the time that numbers.ctypes.data takes
    return address


def _check_rows(rows: Tensor, count: int, dim: int) -> None:
    assert rows.dtype == torch.float32 and rows.shape == (count, dim), (rows.dtype, rows.shape, count, dim)
    assert not rows.numel() or rows.stride(1) == 1 or dim == 1


def _check_table(weights: Tensor, rows: Ids | None, grads: RowSums, *states: Tensor) -> None:
    assert grads.count == (len(weights) if rows is None else len(rows)) and grads.dim == weights.shape[1]
    for tensor in (weights, *states):
        assert tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.shape == weights.shape
