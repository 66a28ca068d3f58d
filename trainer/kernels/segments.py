"""Which positions of a batch look up the same row: a sort, and not a word from the device to the host.

A segment is a row's positions. Its gradients are added up in chunks of `CHUNK` positions, chunks in blocks of `CHUNK`
chunks, then its blocks in order: a hot row is in half the bags of a batch, and its pieces are added up side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 32


@dataclass(frozen=True, slots=True)
class Segments:
    """Positions grouped by row."""

    slots_L: Tensor  # int32 or int64: the row of each position of order_L; equal ones stand together
    order_L: Tensor  # int64: positions by (row, position)
    states_L: Tensor | None = None  # where the row's optimizer state is; None: as the row


@dataclass(frozen=True, slots=True)
class RowGradients:
    """What a batch gives back to the rows that it looked up."""

    grads_BD: Tensor  # float32: the gradient of the loss by the pooled bags
    bag_of_L: Tensor  # int64: the bag of each position
    scale_L: Tensor | None  # float32: what each row was multiplied with when it was pooled
    segments: Segments  # of the slots that were pooled
    wrong: Tensor | None = None  # int64 [n]: no row is updated where one of them is not 0


def segments_of(slots_L: Tensor) -> Segments:
    """Return the segments of slots, int32 or int64 [L], none negative; no synchronisation with the device."""
    return Segments(*torch.sort(slots_L, stable=True))
