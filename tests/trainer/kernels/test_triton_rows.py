"""Every kernel against plain torch, on bags that are empty, long and of one hot row, in memory full of NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ett.trainer.kernels import reference
from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.segments import CHUNK, RowGradients, segments_of
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad, Adam, RowOptimizer, RowWiseAdagrad, Sgd

NUM_ROWS = 40
OPTIMIZERS = [Sgd(), Adagrad(1e-8), RowWiseAdagrad(1e-8), Adam(0.9, 0.999, 1e-8)]


@dataclass(frozen=True)
class Batch:
    slots_L: Tensor
    offsets: Tensor
    scale_L: Tensor | None
    grads_BD: Tensor

    @property
    def bag_of_L(self) -> Tensor:
        lengths = self.offsets.diff()
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    @property
    def gradients(self) -> RowGradients:
        return RowGradients(self.grads_BD, self.bag_of_L, self.scale_L, segments_of(self.slots_L))


def make_batch(lengths: list[int], dim: int, *, scaled: bool, hot: int, device: torch.device) -> Batch:
    draw = torch.Generator().manual_seed(sum(lengths) * 31 + dim)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    length = int(offsets[-1])
    slots = torch.randint(0, NUM_ROWS, (length,), generator=draw)
    slots[:hot] = 7
    scale = torch.rand(length, generator=draw) if scaled else None
    grads = torch.randn(len(lengths), dim, generator=draw)
    parts = (slots, offsets, scale, grads)
    return Batch(*(None if part is None else part.to(device) for part in parts))  # type: ignore[arg-type]


def table(dim: int, device: torch.device) -> Tensor:
    return torch.randn(NUM_ROWS, dim, generator=torch.Generator().manual_seed(1)).to(device)


BATCHES = [([0, 3, 0, 0, 1], 4), ([2] * 9, 24), ([5, 0, 3 * CHUNK + 1, 1], 64), ([CHUNK, CHUNK + 1], 3), ([0, 0], 8)]


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("lengths", "dim"), BATCHES)
def test_pooling_adds_in_the_order_of_positions_to_the_bit(
    lengths: list[int], dim: int, scaled: bool, device: torch.device
) -> None:
    from ett.trainer.kernels import triton_rows

    batch, rows = make_batch(lengths, dim, scaled=scaled, hot=4, device=device), table(dim, device)
    pooled = (rows, batch.slots_L, batch.offsets, batch.scale_L)
    expected = reference.pool_rows(*pooled, len(lengths))
    assert torch.equal(triton_rows.pool_rows(*pooled, len(lengths)), expected)
    by_example = expected.view(len(lengths), 1, dim).transpose(0, 1).reshape(expected.shape)
    assert torch.equal(triton_rows.pool_rows(*pooled, 1), reference.pool_rows(*pooled, 1))
    assert torch.equal(triton_rows.pool_rows(*pooled, 1), by_example)
    plain = torch.nn.functional.embedding_bag(
        batch.slots_L, rows, batch.offsets, mode="sum", include_last_offset=True, per_sample_weights=batch.scale_L
    )
    # n additions of terms below 5, each rounded by at most 2^-24 of a partial sum of at most 5 n.
    most = max(lengths)
    torch.testing.assert_close(expected, plain, rtol=0, atol=2 * 5 * (most + 1) ** 2 * 2**-24)


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("lengths", "dim"), [*BATCHES, ([3, CHUNK**2 + 2 * CHUNK, 5], 4)])
def test_gradients_of_a_row_are_summed_in_chunks_to_the_bit(
    lengths: list[int], dim: int, scaled: bool, device: torch.device
) -> None:
    hot = 2 * CHUNK + 3 if sum(lengths) < CHUNK**2 else sum(lengths) - 9
    check_sums(make_batch(lengths, dim, scaled=scaled, hot=hot, device=device), device)


# Around every length at which a row gets another chunk or block, beside others of such lengths.
LENGTHS_OF_ROWS = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, CHUNK**2 - 1, CHUNK**2, CHUNK**2 + 1, 2 * CHUNK**2 + 5]


@pytest.mark.slow
@given(lengths=st.lists(st.sampled_from(LENGTHS_OF_ROWS), min_size=1, max_size=6), seed=st.integers(0, 9))
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_rows_of_every_length_are_summed_beside_each_other(lengths: list[int], seed: int, device: torch.device) -> None:
    draw = torch.Generator().manual_seed(seed)
    slots = torch.repeat_interleave(3 * torch.arange(len(lengths)) + 1, torch.tensor(lengths))
    slots = slots[torch.randperm(len(slots), generator=draw)].to(torch.int32)
    grads = torch.randn(len(slots), 3, generator=draw)
    offsets = torch.arange(len(slots) + 1)
    check_sums(Batch(slots.to(device), offsets.to(device), None, grads.to(device)), device)


def check_sums(batch: Batch, device: torch.device) -> None:
    """Of rows of zeros, SGD with a rate of 1 makes the sums, negated."""
    from ett.trainer.kernels import triton_update

    dim = batch.grads_BD.shape[1]
    found, expected = (torch.zeros(NUM_ROWS, dim, device=device) for _ in range(2))
    slots, sums = reference.sum_segments(batch.gradients)
    expected[slots] = -sums
    triton_update.apply_gradients(Sgd(), found, {}, batch.gradients, 1.0)
    assert torch.equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_a_wrong_batch_updates_no_row(optimizer: RowOptimizer, device: torch.device) -> None:
    from ett.trainer.kernels import triton_update

    batch = make_batch([3, CHUNK + 9, 2], 16, scaled=False, hot=CHUNK + 2, device=device)
    states = {s.name: torch.zeros(NUM_ROWS, s.width, dtype=getattr(torch, s.dtype)) for s in optimizer.states(16)}
    states = {name: state.to(device) for name, state in states.items()}
    rows = table(16, device)
    for word in range(3):
        wrong = torch.zeros(3, dtype=torch.int64, device=device)
        wrong[word] = 1
        for kernels in (triton_update, reference):
            kernels.apply_gradients(optimizer, rows, states, replace(batch.gradients, wrong=wrong), 0.1)
    assert torch.equal(rows, table(16, device)) and not any(state.any() for state in states.values())
    right = replace(batch.gradients, wrong=torch.zeros(3, dtype=torch.int64, device=device))
    triton_update.apply_gradients(optimizer, rows, states, right, 0.1)
    assert not torch.equal(rows, table(16, device))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 600])
@pytest.mark.parametrize("num_rows", [100, 2**40])
def test_ids_are_located_and_wrong_ones_counted(batch_size: int, num_rows: int, device: torch.device) -> None:
    from ett.trainer.kernels import triton_batch

    draw = torch.Generator().manual_seed(batch_size)
    lengths = torch.randint(0, 4, (3 * batch_size,), generator=draw)
    lengths[batch_size] = 0
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(device)
    ids = torch.randint(0, 30, (int(offsets[-1]),), generator=draw).to(device)
    first, counts = torch.tensor([0, 30, 90], device=device), torch.tensor([30, 60, 30], device=device)
    of = FeatureRows(first, counts, num_rows)
    for wrong in ({}, {0: -1}, {len(ids) - 1: 2**62, len(ids) // 2: -(2**63)}):
        for at, row_id in wrong.items():
            ids[at] = row_id
        found = []
        for kernels in (triton_batch, reference):
            report = torch.zeros(2, dtype=torch.int64, device=device)
            found.append((*kernels.locate_rows(ids, offsets, of, report), report))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    positions = torch.repeat_interleave(torch.arange(3 * batch_size), lengths)
    assert torch.equal(found[0][1].cpu(), positions % batch_size * 3 + positions // batch_size)
    assert int(found[0][2][0]) == int(((ids < 0) | (ids > 60)).sum())


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 8192, 20_000])
def test_elements_that_are_not_finite_are_counted(count: int, device: torch.device) -> None:
    from ett.trainer.kernels import triton_batch

    values = torch.rand(count, device=device) * 1e38
    values[:: max(count // 7, 1)] = 3e38
    for number in (float("nan"), float("inf"), -float("inf")):
        report = torch.zeros(3, dtype=torch.int64, device=device)
        triton_batch.count_not_finite(values, report)
        assert report.tolist() == [0, 0, 0]
        broken = values.clone()
        broken[count // 2] = broken[-1] = number
        triton_batch.count_not_finite(broken, report)
        reference.count_not_finite(broken, report)
        assert report.tolist() == [2 * len({count // 2, count - 1}), 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(("lengths", "dim"), [([1, 4, 0, 2], 24), ([3, CHUNK + 9, 2], 16)])
def test_an_update_is_the_optimizers_of_the_host(
    optimizer: RowOptimizer, lengths: list[int], dim: int, device: torch.device
) -> None:
    """A step rounds at most 8 times, each by 2^-24 of a number below |w| + 1; a state by that of itself."""
    from ett.trainer.kernels import triton_update

    batch = make_batch(lengths, dim, scaled=True, hot=CHUNK + 2, device=device)
    ours, theirs = table(dim, device), table(dim, device)
    specs = optimizer.states(dim)
    of_ours = {s.name: torch.zeros(NUM_ROWS, s.width, dtype=getattr(torch, s.dtype), device=device) for s in specs}
    of_theirs = {name: state.clone() for name, state in of_ours.items()}
    untouched = torch.ones(NUM_ROWS, dtype=torch.bool, device=device).index_fill_(0, batch.slots_L, False)
    for _ in range(3):
        triton_update.apply_gradients(optimizer, ours, of_ours, batch.gradients, 0.1)
        reference.apply_gradients(optimizer, theirs, of_theirs, batch.gradients, 0.1)
        size = theirs.abs().max() + 1.0
        assert (ours - theirs).abs().max() <= 3 * 8 * 2**-24 * size
        for name, state in of_theirs.items():
            torch.testing.assert_close(of_ours[name], state, rtol=3 * 8 * 2**-24, atol=1e-30)
    assert torch.equal(ours[untouched], table(dim, device)[untouched])
    assert not torch.equal(ours[~untouched], table(dim, device)[~untouched])


@pytest.mark.parametrize("dim", [1, 3, 64])
def test_gather_then_scatter_moves_rows_and_nothing_else(dim: int, device: torch.device) -> None:
    from ett.trainer.kernels import triton_rows

    rows, slots = table(dim, device), torch.tensor([5, 0, 39, 7], device=device)
    out = torch.full((4, dim), float("nan"), device=device)
    triton_rows.gather_rows(rows, slots, out)
    assert torch.equal(out, rows[slots])
    target = torch.full_like(rows, float("nan"))
    triton_rows.scatter_rows(target, slots, out)
    assert torch.equal(target[slots], rows[slots])
    assert int(target.isnan().all(1).sum()) == NUM_ROWS - 4


@pytest.mark.parametrize("middle", [0.0, 0.25])
@pytest.mark.parametrize("dim", [3, 64])
def test_initial_rows_are_those_of_the_host_to_the_bit(dim: int, middle: float, device: torch.device) -> None:
    from ett.trainer.kernels import triton_rows

    init = RowInit("t", seed=3, dim=dim, scale=0.01, middle=middle)
    out = torch.full((NUM_ROWS, dim), float("nan"), device=device)
    triton_rows.fill_initial_rows(out, int(init.key.astype(np.int64)), 2**40, float(init.scale), middle)
    assert torch.equal(out.cpu(), torch.from_numpy(init.rows(np.arange(2**40, 2**40 + NUM_ROWS))))


@pytest.mark.slow
@given(slots=st.lists(st.integers(0, 6), max_size=3 * CHUNK), dtype=st.sampled_from([torch.int32, torch.int64]))
@settings(max_examples=60)
def test_segments_are_the_positions_of_each_row_in_order(slots: list[int], dtype: torch.dtype) -> None:
    found = segments_of(torch.tensor(slots, dtype=dtype))
    assert found.order_L.tolist() == sorted(range(len(slots)), key=lambda p: (slots[p], p))
    assert found.slots_L.tolist() == sorted(slots)
