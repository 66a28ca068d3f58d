"""Arithmetic on lengths and offsets: segment s holds the values [offsets[s], offsets[s + 1]). All int64, no loops.

Shapes: S segments, L values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ett.errors import DataError


def as_int64(counts: Tensor) -> Tensor:
    """Return counts as int64, the same tensor where it is that already."""
    return counts.to(torch.int64)


def offsets_of(lengths_S: Tensor) -> Tensor:
    """Return int64 [S + 1], offsets[0] == 0 and offsets[S] the sum."""
    offsets = lengths_S.new_zeros(lengths_S.numel() + 1)
    torch.cumsum(lengths_S, 0, out=offsets[1:])
    return offsets


def lengths_of(offsets: Tensor) -> Tensor:
    """Return int64 [S] for offsets int64 [S + 1]."""
    return offsets[1:] - offsets[:-1]


def segment_of_values(lengths_S: Tensor, num_values: int) -> Tensor:
    """Return the segment of each value: int64 [num_values], which is the sum of the lengths."""
    segments = torch.arange(lengths_S.numel(), device=lengths_S.device)
    return torch.repeat_interleave(segments, lengths_S, output_size=num_values)


def gather_segments(lengths_S: Tensor, order: Tensor, num_values: int | None = None) -> Tensor:
    """Return where each value of the chosen segments stands now: int64, segment after segment in the new order.

    Args:
        order: int64 [T], segments to take, in any order and any number of times.
        num_values: of them all; None: it is asked for, which waits for the device.
    """
    begins = offsets_of(lengths_S)[:-1][order]
    lengths = lengths_S[order]
    new_offsets = offsets_of(lengths)
    num_values = int(new_offsets[-1]) if num_values is None else num_values
    shift = torch.repeat_interleave(begins - new_offsets[:-1], lengths, output_size=num_values)
    return torch.arange(num_values, device=lengths_S.device) + shift


def check_lengths(lengths_S: Tensor, num_values: int, what: str) -> None:
    """Raise DataError where a length is negative or they do not sum to num_values; waits for the device."""
    if lengths_S.numel() and int(lengths_S.min()) < 0:
        at = int((lengths_S < 0).nonzero()[0])
        raise DataError(
            f"{what}: length {at} is {int(lengths_S[at])}", expected="lengths of 0 or more", do="check the reader"
        )
    if (total := int(lengths_S.sum())) != num_values:
        raise DataError(
            f"{what}: the lengths sum to {total}, there are {num_values} values",
            expected="one length an example (and key), which together cover all values",
            do="check the reader: a batch cut in the middle looks like this",
        )


def check_offsets(offsets: Tensor, num_values: int, what: str) -> None:
    """Raise DataError where offsets do not begin at 0, fall, or do not end at num_values; waits for the device."""
    if not offsets.numel() or int(offsets[0]) != 0:
        first = int(offsets[0]) if offsets.numel() else "missing"
        raise DataError(f"{what}: the first offset is {first}", expected="0", do="pass S + 1 offsets for S segments")
    check_lengths(lengths_of(offsets), num_values, what)
