"""Every kernel against plain torch, on bags that are empty, long and of one hot row, in memory full of NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ett.trainer.kernels import reference
from ett.trainer.kernels.segments import CHUNK, Chunks, RowGradients, segments_of
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
        return RowGradients(self.grads_BD, self.bag_of_L, self.scale_L, segments_of(self.slots_L, NUM_ROWS))


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


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("lengths", "dim"), [*BATCHES, ([3, CHUNK**2 + 2 * CHUNK, 5], 4)])
def test_gradients_of_a_row_are_summed_in_chunks_to_the_bit(
    lengths: list[int], dim: int, scaled: bool, device: torch.device
) -> None:
    from ett.trainer.kernels import triton_update

    hot = 2 * CHUNK + 3 if sum(lengths) < CHUNK**2 else sum(lengths) - 9
    batch = make_batch(lengths, dim, scaled=scaled, hot=hot, device=device)
    expected = reference.sum_segments(batch.gradients)
    assert torch.equal(triton_update.sum_segments(batch.gradients)[: len(expected)], expected)


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


@given(
    slots=st.lists(st.integers(0, 6), max_size=3 * CHUNK),
    hot=st.sampled_from([0, 0, 1, CHUNK**2, CHUNK**2 + 40]),
    num_rows=st.sampled_from([7, 2**40]),
)
@settings(max_examples=60)
def test_segments_are_the_positions_of_each_row_in_order(slots: list[int], hot: int, num_rows: int) -> None:
    slots = slots + [3] * hot
    found = segments_of(torch.tensor(slots, dtype=torch.int64), num_rows)
    count, starts = int(found.count), found.starts.tolist()
    assert found.slots[:count].tolist() == sorted(set(slots))
    for i, slot in enumerate(sorted(set(slots))):
        positions = found.order_L[starts[i] : starts[i + 1]].tolist()
        assert positions == [p for p, other in enumerate(slots) if other == slot]
        pieces = pieces_of(found.chunks, i)
        parts = [order for start, end in pieces for order in found.order_L[start:end].tolist()]
        assert parts == (positions if len(positions) > CHUNK else [])
        blocks = pieces_of(found.blocks, i)
        of_blocks = [chunk for start, end in blocks for chunk in range(start, end)]
        first = int(found.chunks.first[i])
        assert of_blocks == (list(range(first, first + len(pieces))) if len(pieces) > CHUNK else [])
    for pieces_of_all in (found.chunks, found.blocks):
        beyond = int(pieces_of_all.first[-1])
        assert torch.equal(pieces_of_all.starts[beyond:], pieces_of_all.ends[beyond:])


def pieces_of(chunks: Chunks, number: int) -> list[tuple[int, int]]:
    """Return where the chunks of a list start and end; each holds something, and at most CHUNK."""
    these = range(int(chunks.first[number]), int(chunks.first[number + 1]))
    pieces = [(int(chunks.starts[c]), int(chunks.ends[c])) for c in these]
    assert all(0 < end - start <= CHUNK for start, end in pieces)
    return pieces
