"""Attention over histories of uneven length, against a whole score matrix for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_attention import plain_attention
from torch import Tensor

from ett.trainer.dense import jagged_attention as module
from ett.trainer.dense.jagged_attention import BLOCK, Layout, jagged_attention
from ett.trainer.jagged.segments import offsets_of

HEADS, DIM, SCALE = 2, 3, 0.1


def inputs(num_positions: int, window: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return queries, keys, values and the bias, which want gradients."""
    generator = torch.Generator().manual_seed(num_positions)
    shapes = [(num_positions, HEADS, DIM)] * 2 + [(num_positions, HEADS, DIM + 1), (HEADS, window)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def trained(lengths: list[int], window: int, *, plain: bool, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return the output and the gradients of all inputs."""
    offsets = offsets_of(torch.tensor(lengths, dtype=torch.int64))
    q, k, v, bias = leaves = inputs(int(offsets[-1]), window, dtype)
    if plain:
        out = plain_attention(q, k, v, bias, offsets, window=window, scale=SCALE)
    else:
        out = jagged_attention(q, k, v, bias, Layout.of(offsets, window), SCALE)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """Memory that nobody wrote is NaN, so that a read of it shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.usefixtures("uninitialised_is_nan")
@pytest.mark.parametrize(
    ("lengths", "window"),
    [
        ([0], 4),
        ([0, 0, 0], 4),
        ([1], 1),
        ([0, 3, 0, 5, 0], 100),
        ([BLOCK], BLOCK),
        ([BLOCK, BLOCK + 1, BLOCK - 1], BLOCK + 1),
        ([1, 900, 2, 0, 1], 37),
        ([2, 400, 1], 1000),
        ([1] * 200, 8),
    ],
)
def test_it_equals_whole_score_matrices_forward_and_backward(lengths: list[int], window: int) -> None:
    for got, want in zip(trained(lengths, window, plain=False), trained(lengths, window, plain=True), strict=True):
        # float64: sums of at most 1,000 products of numbers near 1, 1,000 * 1,000 * 2^-53 = 1e-10 at the very worst.
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.slow
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 63, 64, 65, 130]), min_size=1, max_size=5),
    window=st.sampled_from([1, 2, 63, 64, 65, 200]),
)
@settings(max_examples=15)
def test_any_lengths_and_window_equal_whole_score_matrices(lengths: list[int], window: int) -> None:
    for got, want in zip(trained(lengths, window, plain=False), trained(lengths, window, plain=True), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-9)])
def test_narrow_numbers_differ_by_their_rounding_alone(dtype: torch.dtype, bound: float) -> None:
    lengths, window = [5, 0, 150], 32
    exact = trained(lengths, window, plain=False)
    q, k, v, bias = (each.detach().to(dtype) for each in inputs(sum(lengths), window))
    offsets = offsets_of(torch.tensor(lengths))
    out = jagged_attention(q, k, v, bias.float(), Layout.of(offsets, window), SCALE)
    # Each of the at most 32 summands, scores up to about 10 times values up to about 4, is off by a few roundings:
    # of inputs, scores, weights and products.
    assert float((out.double() - exact[0]).abs().max()) <= SCALE * 32 * 40 * 4 * bound
    assert out.dtype == dtype


@pytest.mark.slow
def test_a_history_sees_nothing_of_its_neighbours() -> None:
    offsets = offsets_of(torch.tensor([20, 30, 40]))
    q, k, v, bias = inputs(90, 50)
    out = jagged_attention(q, k, v, bias, Layout.of(offsets, 50), SCALE)
    (grad,) = torch.autograd.grad(out[20:50].square().sum(), v)
    assert not grad[:20].any() and not grad[50:].any()
    assert grad[20:50].any(dim=2).all()


def test_a_position_sees_no_later_one_and_no_further_than_the_window() -> None:
    offsets = offsets_of(torch.tensor([200]))
    q, k, v, bias = inputs(200, 70)
    out = jagged_attention(q, k, v, bias, Layout.of(offsets, 70), SCALE)
    (grad,) = torch.autograd.grad(out[150].square().sum(), v)
    assert grad.any(dim=2).any(dim=1).nonzero()[:, 0].tolist() == list(range(81, 151))


@pytest.mark.slow
def test_two_runs_have_the_same_bits_and_steps_of_another_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, window = [200, 0, 5, 400], 130
    first, second = (trained(lengths, window, plain=False, dtype=torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    # Only the bias sums over all pairs of a step.
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", 2 * HEADS * BLOCK * BLOCK)
    other = trained(lengths, window, plain=False, dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(first[:4], other[:4], strict=True))


def scores_computed(lengths: list[int], window: int) -> int:
    layout = Layout.of(offsets_of(torch.tensor(lengths)), window)
    return sum(len(queries) for _, queries, _ in layout.steps(1)) * BLOCK * BLOCK


@pytest.mark.slow
def test_the_cost_is_that_of_positions_times_window_whatever_the_longest_is() -> None:
    window, short = 100, [50] * 400
    even = scores_computed(short, window)
    one_long = scores_computed([*short[:-200], 200 * 50], window)
    # A block of queries meets keys of its window and of two blocks at whose edges it begins and ends.
    assert max(even, one_long) <= 400 * 50 * (window + 2 * BLOCK)
    assert scores_computed(short * 3, window) <= 3 * even + BLOCK * BLOCK
    padded_to_the_longest = 201 * (200 * 50) ** 2
    assert one_long * 1000 < padded_to_the_longest
