"""The dense part through torch's own data parallelism, set up so that a restored job sums as one that ran through.

DistributedDataParallel (DDP) lays its buckets out anew after its first backward pass, in the order in which gradients
came. Here that pass is one without an example, before the first step: every step of every life has the final layout.
fully_shard (FSDP2) has one layout from the start. Both sum gradients here, where by default they average: a loss is
divided by the global count already.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ett.checkpoint.lost_peer import peers_named
from ett.trainer.comm.collectives import Collectives

NoExamples = Callable[[nn.Module], Tensor]


class DdpGradients:
    """DDP sums gradients in buckets while the backward pass goes on; see `ett.trainer.dense.gradient_sums`."""

    def __init__(self, model: nn.Module, collectives: Collectives, *, bucket_bytes: int) -> None:
        self._collectives = collectives
        with warnings.catch_warnings():
            # torch 2.13 has another name for broadcast_buffers, which 2.11 does not know.
            warnings.simplefilter("ignore", FutureWarning)
            self._ddp = nn.parallel.DistributedDataParallel(
                model,
                init_sync=False,  # every rank has drawn the same weights
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                bucket_cap_mb=bucket_bytes / 2**20,
            )
        self._ddp.register_comm_hook(None, lambda state, bucket: _sum(bucket.buffer()))
        self.model: nn.Module = self._ddp
        self._is_laid_out = False

    def zero(self, no_examples: NoExamples) -> None:
        if not self._is_laid_out:
            for _ in range(2):  # the layout changes when the second pass begins
                with peers_named():
                    torch.autograd.backward(no_examples(self._ddp).sum())
            self._is_laid_out = True
        self._ddp.zero_grad()

    @contextmanager
    def one_pass(self, *, is_last: bool) -> Iterator[None]:
        with peers_named(), nullcontext() if is_last else self._ddp.no_sync():
            yield

    def start_sum(self, scalar: Tensor) -> Callable[[], float]:
        return _start_sum(scalar, self._collectives)


class ShardedGradients:
    """Each rank has its part of every parameter, of its gradient and of its optimizer state."""

    def __init__(self, model: nn.Module, collectives: Collectives) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self._collectives = collectives
        # Without a mesh it would take a GPU wherever there is one.
        mesh = init_device_mesh(next(model.parameters()).device.type, (collectives.world_size,))
        for part in _parts_with_parameters(model):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self._sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self._sharded:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no premultiplied sum
        self.model = model

    def zero(self, no_examples: NoExamples) -> None:
        self.model.zero_grad()

    @contextmanager
    def one_pass(self, *, is_last: bool) -> Iterator[None]:
        for module in self._sharded:
            module.set_requires_gradient_sync(is_last, recurse=False)
        with peers_named():
            yield

    def start_sum(self, scalar: Tensor) -> Callable[[], float]:
        return _start_sum(scalar, self._collectives)


def _parts_with_parameters(model: nn.Module) -> Iterator[nn.Module]:
    """Yield what is gathered at once: the parts of a model, and each of a list of layers."""
    for child in model.children():
        for part in child if isinstance(child, nn.ModuleList) else [child]:
            if any(True for _ in part.parameters()):
                yield part


def _sum(bucket: Tensor) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket, async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return summed


def _start_sum(scalar: Tensor, collectives: Collectives) -> Callable[[], float]:
    total = scalar.reshape(1).clone()
    wait_for_it = collectives.sum_in_place(total)

    def wait() -> float:
        wait_for_it()
        return float(total)

    return wait
