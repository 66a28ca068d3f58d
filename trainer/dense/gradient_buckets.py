"""Sum dense gradients over ranks in buckets whose layout never changes.

DistributedDataParallel lays its buckets out anew after the first step, in the order in which gradients came, so a
restored job sums in another order than the one that ran through. Here the layout follows from names and sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ett.trainer.comm.collectives import Collectives

# Parameters start on multiples of 64 bytes, as tensors of their own do.
_ALIGNMENT = 16


class GradientBuckets:
    """Owns the gradients of a model: every `param.grad` is a view into a bucket.

    The last bucket has one more element, so that a scalar of the step (the loss) is summed without a collective of its
    own.
    """

    def __init__(self, model: nn.Module, collectives: Collectives, *, bucket_bytes: int) -> None:
        self.model = model
        self._collectives = collectives
        self._buckets: list[Tensor] = []
        named = sorted(model.named_parameters())
        for group in _groups([(name, param.numel()) for name, param in named], bucket_bytes // 4):
            sizes = [_padded(named[i][1].numel()) for i in group]
            is_last = group[-1] == len(named) - 1
            bucket = torch.zeros(sum(sizes) + is_last, device=named[group[0]][1].device)
            for i, part in zip(group, torch.split(bucket[: sum(sizes)], sizes), strict=True):
                param = named[i][1]
                param.grad = part[: param.numel()].view_as(param)
            self._buckets.append(bucket)

    def __len__(self) -> int:
        return len(self._buckets)

    def zero(self, no_examples: object = None) -> None:
        """Forget the last step's gradients; call before backward, in place of optimizer.zero_grad."""
        for bucket in self._buckets:
            bucket.zero_()

    def one_pass(self, *, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()  # sums begin after the last

    def start_sum(self, scalar: Tensor) -> Callable[[], float]:
        """Start to sum all gradients over ranks; the function returned waits and gives the summed scalar.

        Args:
            scalar: float32 [], this rank's part.
        """
        self._buckets[-1][-1] = scalar
        waits = [self._collectives.sum_in_place(bucket) for bucket in self._buckets]

        def wait() -> float:
            for each in waits:
                each()
            return float(self._buckets[-1][-1])

        return wait


def _groups(sizes: list[tuple[str, int]], limit: int) -> list[list[int]]:
    groups: list[list[int]] = []
    filled = limit
    for i, (_, size) in enumerate(sizes):
        if not groups or filled + _padded(size) > limit:
            groups.append([])
            filled = 0
        groups[-1].append(i)
        filled += _padded(size)
    return groups


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
