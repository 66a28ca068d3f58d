"""A step's examples in several parts, one forward and backward pass each; the rows' gradients are joined again.

The parts stand one after the other, so each row's gradients are summed in the order of one whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class MicroBatches:
    """Iterates over (which examples, their rows): leaves of their own, if there is more than one part.

    Args:
        rows_BFD: a leaf; B may be below num_parts, and some parts then have no example: ranks need not agree.
    """

    def __init__(self, rows_BFD: Tensor, num_parts: int) -> None:
        self._rows_BFD, self._num_parts = rows_BFD, num_parts
        self._leaves: list[Tensor] = []

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        num_examples, num_parts = len(self._rows_BFD), self._num_parts
        for number in range(num_parts):
            part = slice(num_examples * number // num_parts, num_examples * (number + 1) // num_parts)
            leaf = self._rows_BFD if num_parts == 1 else self._rows_BFD.detach()[part].requires_grad_()
            self._leaves.append(leaf)
            yield part, leaf

    def join_gradients(self) -> None:
        """Give the whole leaf its gradient; call after the last backward pass."""
        if self._num_parts > 1:
            self._rows_BFD.grad = torch.cat([leaf.grad for leaf in self._leaves if leaf.grad is not None])
