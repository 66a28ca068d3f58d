"""A step's examples in several parts, one forward and backward pass each; the rows' gradients are joined again.

The parts stand one after the other, so each row's gradients are summed in the order of one whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ett.trainer.dense.device import CPU, on_host
from ett.trainer.embedding.table_outputs import SparseInputs


class MicroBatches:
    """Iterates over (which examples, their rows): leaves of their own, if there are several parts or another device.

    Args:
        whole: of the step; its examples may be fewer than num_parts, and some parts then have none: ranks need not
            agree.
    """

    def __init__(self, whole: SparseInputs, num_parts: int, device: torch.device = CPU) -> None:
        self._whole, self._num_parts, self._device = whole, num_parts, device
        self._is_whole = num_parts == 1 and device.type == "cpu"
        self._parts: list[SparseInputs] = []

    def __iter__(self) -> Iterator[tuple[slice, SparseInputs]]:
        num_examples, num_parts = self._whole.num_examples, self._num_parts
        for number in range(num_parts):
            part = slice(num_examples * number // num_parts, num_examples * (number + 1) // num_parts)
            self._parts.append(self._whole if self._is_whole else self._whole.leaves(part, self._device))
            yield part, self._parts[-1]

    def join_gradients(self) -> None:
        """Give the whole its gradients; call after the last backward pass."""
        if not self._is_whole:
            parts = zip(*(part.values() for part in self._parts), strict=True)
            grads = on_host([torch.cat([_grad(leaf) for leaf in each]) for each in parts])
            torch.autograd.backward(self._whole.values(), grads)


def _grad(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
