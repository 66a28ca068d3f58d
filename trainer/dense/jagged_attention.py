"""Causal attention within each user's history, histories back to back: no softmax, and no padding to the longest.

out[i] = scale * sum of silu(q[i] . k[j] + bias[i - j]) * v[j] over the j of i's own segment with i - window < j <= i.

All positions are cut into blocks of BLOCK, whatever segment they are in, and a block of queries meets the blocks of
keys that one of them can see: the cost is that of positions times window (or length, where that is less), whatever the
longest is. Nothing of the size of a score matrix is kept for the backward pass, which computes the scores again. Every
sum has a fixed order, on any device: block pairs of one distance at a time, each block of the result once for each.

Source: Zhai et al., Actions Speak Louder than Words (2024), equation 2, with a constant in place of its 1 / n.
Shapes: L positions, H heads, D and E elements of a head, N blocks, P pairs of blocks, C = BLOCK, W = window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ett.trainer.jagged.segments import lengths_of, segment_of_values

BLOCK = 64
_SCORES_AT_ONCE = 1 << 19  # elements of one step's scores: 2 MiB stay in a core's cache


@dataclass(frozen=True, slots=True)
class Layout:
    """Which positions see which: the same for all layers of a model, so it is made once a batch."""

    num_positions: int
    window: int
    begin_NC: Tensor  # int64: the first position that each one sees; of those that pad the last block: none
    pairs: tuple[Tensor, ...]  # by distance in blocks: the query blocks, int64, that have something to see there

    @staticmethod
    def of(offsets: Tensor, window: int) -> Layout:
        """Return the layout of segments [offsets[s], offsets[s + 1]); waits for the device."""
        num_positions = int(offsets[-1])
        num_blocks = -(-num_positions // BLOCK)
        position = torch.arange(num_blocks * BLOCK, device=offsets.device)
        begin = position + 1
        first = offsets[:-1][segment_of_values(lengths_of(offsets), num_positions)]
        begin[:num_positions] = torch.maximum(first, position[:num_positions] - (window - 1))
        begin_NC = begin.view(num_blocks, BLOCK)
        blocks = torch.arange(num_blocks, device=offsets.device)
        reach_N = blocks - begin_NC[:, 0] // BLOCK if num_blocks else blocks
        longest = int(reach_N.max()) if num_blocks else -1
        pairs = tuple((reach_N >= distance).nonzero()[:, 0] for distance in range(longest + 1))
        return Layout(num_positions, window, begin_NC, pairs)

    def steps(self, num_heads: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (distance in blocks, query blocks, which keys each position does not see: bool [P, 1, C, C])."""
        at_once = max(1, _SCORES_AT_ONCE // (num_heads * BLOCK * BLOCK))
        within = torch.arange(BLOCK, device=self.begin_NC.device)
        for distance, blocks in enumerate(self.pairs):
            for queries_P in torch.split(blocks, at_once):
                key_PC = (queries_P - distance)[:, None] * BLOCK + within
                hidden = key_PC[:, None, :] < self.begin_NC[queries_P][:, :, None]
                if not distance:
                    hidden = hidden | (within[None, :] > within[:, None])
                yield distance, queries_P, hidden[:, None]


def jagged_attention(  # noqa: PLR0917 - queries, keys and values are known by their place
    q_LHD: Tensor, k_LHD: Tensor, v_LHE: Tensor, bias_HW: Tensor, layout: Layout, scale: float
) -> Tensor:
    """Return [L, H, E], of v's dtype; scores and sums have the dtype of the bias, float32.

    Args:
        bias_HW: added to the score of a key so many positions before its query.
    """
    out: Tensor = _JaggedAttention.apply(q_LHD, k_LHD, v_LHE, bias_HW, layout, scale)  # type: ignore[no-untyped-call]
    return out


class _JaggedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - as autograd calls it
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias_HW: Tensor, layout: Layout, scale: float
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, bias_HW)
        ctx.layout, ctx.scale = layout, scale
        with torch.autocast(q.device.type, enabled=False):
            queries, keys, values = (_in_blocks(each) for each in (q, k, v))
            out = torch.zeros_like(values, dtype=bias_HW.dtype)
            for distance, at, hidden in layout.steps(q.shape[1]):
                scores = _scores(queries[at], keys[at - distance], bias_HW, distance)
                weights = torch.nn.functional.silu(scores, inplace=True).masked_fill_(hidden, 0.0)
                out[at] += (weights.to(v.dtype) @ values[at - distance]).to(out.dtype)
            return _by_position(out.mul_(scale), layout.num_positions).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        q, k, v, bias_HW = ctx.saved_tensors
        layout: Layout = ctx.layout
        with torch.autocast(q.device.type, enabled=False):
            queries, keys, values, grads = (_in_blocks(each) for each in (q, k, v, grad.to(v.dtype)))
            grad_q, grad_k, grad_v = (torch.zeros_like(each, dtype=bias_HW.dtype) for each in (queries, keys, values))
            # Distances from -(C - 1), which nobody sees, to those of the last pair of blocks.
            grad_bias = bias_HW.new_zeros((len(bias_HW), (len(layout.pairs) + 1) * BLOCK))
            for distance, at, hidden in layout.steps(q.shape[1]):
                q_of, k_of, v_of, grad_of = queries[at], keys[at - distance], values[at - distance], grads[at]
                scores = _scores(q_of, k_of, bias_HW, distance)
                gate = torch.sigmoid(scores)
                weights = scores.mul_(gate).masked_fill_(hidden, 0.0)
                grad_v[at - distance] += (weights.to(v.dtype).transpose(2, 3) @ grad_of).to(grad_v.dtype)
                slope = gate.addcmul_(weights, 1.0 - gate)  # of silu: g + s g (1 - g)
                grad_scores = slope.mul_((grad_of @ v_of.transpose(2, 3)).to(slope.dtype)).masked_fill_(hidden, 0.0)
                _diagonal_sums(grad_scores.sum(0), into=grad_bias[:, distance * BLOCK :])
                grad_scores = grad_scores.to(q.dtype)
                grad_q[at] += (grad_scores @ k_of).to(grad_q.dtype)
                grad_k[at - distance] += (grad_scores.transpose(2, 3) @ q_of).to(grad_k.dtype)
            found = [
                _by_position(g.mul_(ctx.scale), layout.num_positions).to(q.dtype) for g in (grad_q, grad_k, grad_v)
            ]
            seen = grad_bias[:, BLOCK - 1 : BLOCK - 1 + layout.window].mul_(ctx.scale)
            grad_bias_HW = torch.nn.functional.pad(seen, (0, layout.window - seen.shape[1]))
        return found[0], found[1], found[2], grad_bias_HW, None, None


def _in_blocks(rows_LHD: Tensor) -> Tensor:
    """Return [N, H, C, D]; what pads the last block is zero."""
    num_positions, num_heads, dim = rows_LHD.shape
    num_blocks = -(-num_positions // BLOCK)
    padded = rows_LHD.new_zeros((num_blocks * BLOCK, num_heads, dim))
    padded[:num_positions] = rows_LHD
    return padded.view(num_blocks, BLOCK, num_heads, dim).transpose(1, 2).contiguous()


def _by_position(blocks_NHCD: Tensor, num_positions: int) -> Tensor:
    """Return [L, H, D]."""
    return blocks_NHCD.transpose(1, 2).flatten(0, 1)[:num_positions]


def _scores(queries_PHCD: Tensor, keys_PHCD: Tensor, bias_HW: Tensor, distance: int) -> Tensor:
    """Return [P, H, C, C] of bias_HW's dtype; of keys that are out of sight, any finite number."""
    within = torch.arange(BLOCK, device=bias_HW.device)
    back_CC = (distance * BLOCK + within[:, None] - within[None, :]).clamp_(0, bias_HW.shape[1] - 1)
    return (queries_PHCD @ keys_PHCD.transpose(2, 3)).to(bias_HW.dtype).add_(bias_HW[:, back_CC])


def _diagonal_sums(scores_HCC: Tensor, *, into: Tensor) -> None:
    """Add the element of row r and column c to into[:, r - c + C - 1], by sums whose order is fixed."""
    skewed = torch.nn.functional.pad(scores_HCC.flip(2), (0, BLOCK)).flatten(1)
    # A row of 2 C elements read as one of 2 C - 1 stands one place further right than the row above.
    into[:, : 2 * BLOCK - 1] += skewed[:, : BLOCK * (2 * BLOCK - 1)].view(-1, BLOCK, 2 * BLOCK - 1).sum(1)
