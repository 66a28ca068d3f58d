"""How the dense part's gradients are summed over ranks: one seam for the three ways of dense.parallel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor, nn

from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import DenseConfig
from ett.trainer.dense.gradient_buckets import GradientBuckets


class GradientSums(Protocol):
    """All three give the same sums but for their order over ranks: of two ranks, to the last bit."""

    model: nn.Module  # what is called in training

    def zero(self, no_examples: Callable[[nn.Module], Tensor]) -> None:
        """Forget the last step's gradients. Args: no_examples: calls `model` with no example, returns its logits."""

    def one_pass(self, *, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of a forward and backward pass; every rank runs as many, with or without examples."""

    def start_sum(self, scalar: Tensor) -> Callable[[], float]:
        """Start to sum what the last pass left unsummed; the function returned waits and gives the summed scalar."""


def gradient_sums(config: DenseConfig, model: nn.Module, collectives: Collectives) -> GradientSums:
    """Return the way that config names; a single rank has nothing to sum, and takes the buckets."""
    if config.parallel == "buckets" or collectives.world_size == 1:
        return GradientBuckets(model, collectives, bucket_bytes=config.bucket_bytes)
    from ett.trainer.comm.torch_parallel import DdpGradients, ShardedGradients

    if config.parallel == "ddp":
        return DdpGradients(model, collectives, bucket_bytes=config.bucket_bytes)
    return ShardedGradients(model, collectives)
