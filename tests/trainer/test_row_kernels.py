"""The native kernels against their numpy reference, to the bit, and the reference against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ett.trainer.sparse import numpy_row_kernels as reference
from ett.trainer.sparse import row_kernels as kernels
from ett.trainer.sparse.row_sums import RowSums

DIMS = [1, 3, 4, 8, 16, 17, 40, 64, 100, 128, 200, 272]
native = pytest.mark.skipif(kernels.NATIVE is None, reason="_rows.cpp is not built")


def some_sums(dim: int, *, weighted: bool = False, segments: int = 300, rows: int = 50, padding: int = 0) -> RowSums:
    """Segments of 0 to 9 rows and one of 500, of a table with NaN between its rows."""
    rng = np.random.default_rng(dim)
    lengths = rng.integers(0, 10, segments)
    lengths[segments // 2] = 500
    starts = np.concatenate(([0], np.cumsum(lengths)))
    table = torch.full((rows, dim + padding), torch.nan)
    table[:, :dim] = torch.from_numpy(rng.standard_normal((rows, dim), np.float32))
    weights = torch.from_numpy(rng.standard_normal(starts[-1], np.float32)) if weighted else None
    return RowSums(table, dim + padding, dim, rng.integers(0, rows, starts[-1]), starts, weights)


def nan_filled(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan)


@pytest.mark.slow
@native
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_sums_have_the_bits_of_the_reference(dim: int, weighted: bool, threads: int) -> None:
    sums = some_sums(dim, weighted=weighted, padding=5)
    for mean in (False, True):
        ours, theirs = nan_filled(sums.count, dim + 3)[:, :dim], nan_filled(sums.count, dim)
        kernels.sum_rows(sums, ours, mean=mean, threads=threads)
        reference.sum_rows(sums, theirs, mean=mean)
        assert torch.equal(ours, theirs)
        assert ours.shape == (sums.count, dim) and not ours.isnan().any()


@native
def test_many_threads_divide_a_large_sum_and_change_no_bit() -> None:
    sums = some_sums(64, segments=20_000, rows=1000)
    outs = [nan_filled(sums.count, 64) for _ in range(3)]
    for threads, out in zip((1, 2, 4), outs, strict=True):
        kernels.sum_rows(sums, out, threads=threads)
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_sums_leave_what_lies_between_the_rows_of_the_output() -> None:
    sums, out = some_sums(17), torch.full((300, 20), 7.0)
    kernels.sum_rows(sums, out[:, 1:18])
    assert (out[:, 0] == 7).all() and (out[:, 18:] == 7).all()


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_the_reference_pools_as_torch_does(mode: Any) -> None:
    sums = some_sums(16)
    ours = nan_filled(sums.count, 16)
    reference.sum_rows(sums, ours, mean=mode == "mean")
    rows, starts = torch.from_numpy(sums.rows_L), torch.from_numpy(sums.starts_S)
    theirs = torch.nn.functional.embedding_bag(rows, sums.source, starts, mode=mode, include_last_offset=True)
    # 500 terms below 5: at most 500 roundings of sums below 2500, 2^-24 of each.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=500 * 2500 * 2**-24)


@native
@pytest.mark.parametrize("dim", [1, 5, 64])
def test_rows_are_added_and_copied_as_by_the_reference(dim: int) -> None:
    rng = np.random.default_rng(3)
    rows, to = rng.permutation(500)[:300], rng.permutation(400)[:300]
    source = torch.from_numpy(rng.standard_normal((500, dim), np.float32))
    for threads in (1, 2, 4):
        ours, theirs = nan_filled(400, dim), nan_filled(400, dim)
        kernels.copy_rows(source, rows, ours, to, threads=threads)
        reference.copy_rows(source, rows, theirs, to)
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
        kernels.add_rows(ours, to, source[:300], threads=threads)
        reference.add_rows(theirs, to, source[:300])
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    whole = nan_filled(500, dim)
    kernels.copy_rows(source, None, whole, None)
    assert torch.equal(whole, source)


IDS = {
    "few": np.array([5, 5, 5, 2, 5], np.int64),
    "none": np.empty(0, np.int64),
    "negative": np.array([3, -1, -(2**63), 2**63 - 1, -1, 3, 0], np.int64),
    "narrow": np.random.default_rng(0).integers(-50_000, 50_000, 70_000),
    "wide": np.random.default_rng(0).integers(-(2**62), 2**62, 5000).repeat(2),
}


@native
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_are_grouped_as_by_the_reference(ids: Any) -> None:
    for ours, theirs in zip(kernels.group_ids(ids), reference.group_ids(ids), strict=True):
        assert np.array_equal(ours, theirs)


def updated(module: Any, name: str, dim: int, threads: int) -> list[Tensor]:
    """Return weights and states after three updates of some rows; the other rows are NaN, and stay so."""
    rng = np.random.default_rng(1)
    grads = some_sums(dim, weighted=True)
    rows = rng.permutation(400)[: grads.count]
    width = 1 if name == "rowwise_adagrad" else dim

    def filled(columns: int) -> Tensor:
        table = nan_filled(400, columns)
        table[torch.from_numpy(rows)] = torch.from_numpy(rng.random((len(rows), columns), np.float32))
        return table

    weights, first, second = filled(dim), filled(width), filled(width)
    for step in range(1, 4):
        if name == "sgd":
            module.sgd(weights, rows, grads, 0.1, threads=threads)
        elif name == "adam":
            size = torch.full((grads.count,), 0.1 / (1 - 0.9**step))
            root = torch.full((grads.count,), (1 - 0.99**step) ** 0.5)
            moments = first, second
            module.adam(
                weights,
                rows,
                grads,
                betas=(0.9, 0.99),
                eps=1e-8,
                moments=moments,
                corrections=(size, root),
                threads=threads,
            )
        else:
            getattr(module, name)(weights, rows, grads, 0.1, eps=1e-8, total=first, threads=threads)
    return [weights, first, second]


@pytest.mark.slow
@native
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("dim", [1, 5, 16, 64, 200])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_updates_have_the_bits_of_the_reference(name: str, dim: int, threads: int) -> None:
    ours, theirs = updated(kernels, name, dim, threads), updated(reference, name, dim, 1)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.numpy().tobytes() == other.numpy().tobytes()
    assert 100 * dim == int(ours[0].isnan().sum())


@native
def test_a_tensor_that_is_not_in_host_memory_is_refused_and_not_followed() -> None:
    """Its address is another device's, or none: native code that reads it ends the process."""
    elsewhere, here = torch.empty(4, 8, device="meta"), torch.zeros(4, 8)
    every_row = RowSums(elsewhere, 8, 8, np.arange(4), np.arange(5), None)
    calls = [
        lambda: kernels.copy_rows(elsewhere, None, here, None),
        lambda: kernels.sum_rows(every_row, here),
        lambda: kernels.sgd(here, None, every_row, 0.1),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="on meta"):
            call()
