"""Which positions of a batch look up the same row, without a word from the device to the host.

Sizes that only the device knows (how many distinct rows) stay there: arrays have the length that is enough for any
batch of L positions, and `count` says how much of them counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# What one program adds up. A hot row is in half the bags of a batch; its chunks are added up side by side, and so are
# chunks of chunks, which leaves L / 1024 additions in a row at most.
CHUNK = 32
_MOST_SHORT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Chunks:
    """Lists cut into pieces of at most `CHUNK`; a list that is no longer than that has no pieces."""

    first: Tensor  # int64 [L + 1]: the chunks of list u are first[u] to first[u + 1]
    starts: Tensor  # int64 [bound]: where a chunk begins
    ends: Tensor  # int64 [bound]: where it ends; as its start beyond the last chunk


@dataclass(frozen=True, slots=True)
class Segments:
    """Positions grouped by row, ascending by slot, then by position."""

    slots: Tensor  # int64 [L]: the row of segment u; what lies beyond `count` is undefined
    starts: Tensor  # int64 [L + 1]: segment u is order_L[starts[u] : starts[u + 1]]; L beyond `count`
    order_L: Tensor  # int64 [L]
    count: Tensor  # int64 []: U, the number of segments
    chunks: Chunks  # of the positions of each segment
    blocks: Chunks  # of the chunks of each segment


@dataclass(frozen=True, slots=True)
class RowGradients:
    """What a batch gives back to the rows that it looked up."""

    grads_BD: Tensor  # float32: the gradient of the loss by the pooled bags
    bag_of_L: Tensor  # int64: the bag of each position
    scale_L: Tensor | None  # float32: what each row was multiplied with when it was pooled
    segments: Segments  # of the slots that were pooled


def segments_of(slots_L: Tensor, num_rows: int) -> Segments:
    """Return the segments of slots, int64 [L] in [0, num_rows); no synchronisation with the device."""
    length = len(slots_L)
    keys = slots_L if num_rows > _MOST_SHORT else slots_L.to(torch.int32)  # half the passes of a radix sort
    sorted_slots, order = torch.sort(keys, stable=True)
    is_first = torch.ones(length, dtype=torch.bool, device=slots_L.device)
    if length:
        torch.ne(sorted_slots[1:], sorted_slots[:-1], out=is_first[1:])
    number_of = is_first.cumsum(0)  # of a position's segment, from 1
    starts = torch.searchsorted(number_of, torch.arange(1, length + 2, device=slots_L.device))
    slots = sorted_slots[starts[:-1].clamp(max=length - 1)].to(torch.int64)
    count = number_of[-1] if length else torch.zeros((), dtype=torch.int64, device=slots_L.device)
    # More than CHUNK of a list make at least two chunks, so there are at most 2 / CHUNK as many.
    chunks = _chunks_of(starts, 2 * length // CHUNK + 1)
    return Segments(slots, starts, order, count, chunks, _chunks_of(chunks.first, 2 * len(chunks.starts) // CHUNK + 1))


def _chunks_of(starts: Tensor, bound: int) -> Chunks:
    """Cut the lists starts[u] to starts[u + 1]; `bound` is enough for all chunks."""
    lengths = starts.diff()
    num_chunks = torch.where(lengths > CHUNK, (lengths + CHUNK - 1) // CHUNK, 0)
    first = torch.nn.functional.pad(num_chunks.cumsum(0), (1, 0))
    chunk = torch.arange(bound, device=starts.device)
    of = (torch.searchsorted(first, chunk, right=True) - 1).clamp(max=max(len(lengths) - 1, 0))
    if not len(lengths):
        return Chunks(first, chunk, chunk)
    begin = starts[of] + (chunk - first[of]) * CHUNK
    end = torch.where(chunk < first[-1], torch.minimum(begin + CHUNK, starts[of + 1]), begin)
    return Chunks(first, begin, end)
