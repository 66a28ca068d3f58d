"""Which positions of a batch look up the same row, without a word from the device to the host.

Sizes that only the device knows (how many distinct rows) stay there: arrays have the length that is enough for any
batch of L positions, and `count` says how much of them counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Positions that one program adds up. A hot row is in half the bags of a batch; its chunks are added up side by side.
CHUNK = 32


@dataclass(frozen=True, slots=True)
class Segments:
    """Positions grouped by row, ascending by slot, then by position."""

    slots: Tensor  # int64 [L]: the row of segment u; what lies beyond `count` is undefined
    starts: Tensor  # int64 [L + 1]: segment u is order_L[starts[u] : starts[u + 1]]; L beyond `count`
    order_L: Tensor  # int64 [L]
    count: Tensor  # int64 []: U, the number of segments
    first_chunk: Tensor  # int64 [L + 1]: the chunks of segment u, of those with more than one; the rest have none
    chunk_starts: Tensor  # int64 [num_chunks_bound]: where a chunk begins in order_L
    chunk_ends: Tensor  # int64 [num_chunks_bound]: where it ends; 0 beyond the last chunk


@dataclass(frozen=True, slots=True)
class RowGradients:
    """What a batch gives back to the rows that it looked up."""

    grads_BD: Tensor  # float32: the gradient of the loss by the pooled bags
    bag_of_L: Tensor  # int64: the bag of each position
    scale_L: Tensor | None  # float32: what each row was multiplied with when it was pooled
    segments: Segments  # of the slots that were pooled


def segments_of(slots_L: Tensor) -> Segments:
    """Return the segments of int64 [L] slots; no synchronisation with the device."""
    length = len(slots_L)
    sorted_slots, order = torch.sort(slots_L, stable=True)
    is_first = torch.ones(length, dtype=torch.bool, device=slots_L.device)
    if length:
        torch.ne(sorted_slots[1:], sorted_slots[:-1], out=is_first[1:])
    segment_of = is_first.cumsum(0) - 1
    positions = torch.arange(length, device=slots_L.device)
    starts = torch.full((length + 1,), length, dtype=torch.int64, device=slots_L.device)
    _write(starts, segment_of, positions, is_first)
    slots = torch.empty_like(sorted_slots)
    _write(slots, segment_of, sorted_slots, is_first)
    count = is_first.sum()
    return Segments(slots, starts, order, count, *_chunks(starts, segment_of, positions))


def _chunks(starts: Tensor, segment_of: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    length = len(positions)
    lengths = starts.diff()
    chunks_of = torch.where(lengths > CHUNK, (lengths + CHUNK - 1) // CHUNK, torch.zeros_like(lengths))
    first_chunk = torch.cat([chunks_of.new_zeros(1), chunks_of.cumsum(0)])
    within = positions - starts[segment_of]
    is_head = (within % CHUNK == 0) & (chunks_of[segment_of] > 0)
    chunk = first_chunk[segment_of] + within // CHUNK
    # More than CHUNK positions make at least two chunks, so there are at most 2 / CHUNK of the positions.
    bound = 2 * length // CHUNK + 1
    chunk_starts = torch.zeros(bound, dtype=torch.int64, device=positions.device)
    chunk_ends = torch.zeros_like(chunk_starts)
    _write(chunk_starts, chunk, positions, is_head)
    ends = torch.minimum(positions + CHUNK, starts[segment_of + 1])
    _write(chunk_ends, chunk, ends, is_head)
    return first_chunk, chunk_starts, chunk_ends


def _write(target: Tensor, at: Tensor, values: Tensor, where: Tensor) -> None:
    """target[at] = values where `where`, of which the host does not know how many; the others go to a spare place."""
    spare = torch.cat([target, target.new_zeros(1)])
    spare.scatter_(0, torch.where(where, at, len(target)), values)
    target.copy_(spare[:-1])
