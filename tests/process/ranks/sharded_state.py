"""One rank of a program with a sharded dense part: argv = rank, world size, store file, checkpoints, last step."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.local_store import LocalStore
from ett.errors import LostPeer, Unreachable


class Placed(nn.Module):
    """Weights that are spread over ranks in other ways than fully_shard's."""

    def __init__(self, weight: torch.Tensor, world_size: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(weight.clone())
        self.same = nn.Parameter(weight[0].clone())
        self.tiles = nn.Parameter(weight + 1)
        self.twice = nn.Parameter(weight + 2)
        if world_size == 1:
            return
        mesh = init_device_mesh("cpu", (world_size,))
        grid = init_device_mesh("cpu", (2, world_size // 2))
        places: dict[str, tuple[Any, list[Any]]] = {
            "columns": (mesh, [Shard(1)]),
            "same": (mesh, [Replicate()]),
            "tiles": (grid, [Shard(0), Shard(1)]),
            "twice": (grid, [Replicate(), Shard(0)]),  # as with fully_shard on a mesh of two dimensions
        }
        for name, (where, placements) in places.items():
            spread = distribute_tensor(self.get_parameter(name).data, where, placements, src_data_rank=None)
            self.register_parameter(name, nn.Parameter(spread))


def build(world_size: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Dimensions that no world size divides, one smaller than every world but the first, and a module kept whole."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3), nn.Linear(3, 1))
    weight = torch.randn(5, 6)
    if world_size > 1:
        mesh = init_device_mesh("cpu", (world_size,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model[2], mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.append(Placed(weight, world_size))
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Take a step with gradients that depend on the step alone, and move every buffer and the unoptimised weights."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        values = torch.randn(tuple(parameter.shape), generator=generator)
        if isinstance(parameter, DTensor):
            parameter.grad = distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None)
        else:
            parameter.grad = values
    optimizer.step()
    with torch.no_grad():
        model[1].running_mean += step
        for parameter in model[4].parameters():
            parameter.add_(parameter.grad)


def image(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        found |= {f"{named[id(parameter)]}.{key}": value for key, value in state.items()}
    return {name: (v.full_tensor() if isinstance(v, DTensor) else v).numpy() for name, v in found.items()}


class FullDisk(LocalStore):
    """There is no space for this rank's parts."""

    @contextmanager
    def create_stream(self, name: str) -> Iterator[Any]:
        with super().create_stream(name) as file:
            if name.endswith(".distcp"):
                raise OSError(errno.ENOSPC, "injected")
            yield file


def fail_to_save(checkpointer: Checkpointer, rank: int) -> None:
    """Save while the last rank's disk is full: every rank is told, and nothing is left."""
    store = checkpointer._place.store
    assert isinstance(store, LocalStore)
    before = store.list("")
    if rank == checkpointer._place.ranks.world_size - 1:
        store.__class__ = FullDisk
    try:
        checkpointer.save(1, 1)
    except Unreachable as err:
        assert err.code == "S002" and "no space left" in err.fact, err
    else:
        raise AssertionError("the save of half of the parts succeeded")
    store.__class__ = LocalStore
    dist.barrier()
    assert store.list("") == before


class DeadlyDisk(LocalStore):
    """The process dies when it begins to write its parts."""

    def create_stream(self, name: str) -> Any:
        if name.endswith(".distcp"):
            os._exit(9)
        return super().create_stream(name)


def lose_a_peer(checkpointer: Checkpointer, rank: int) -> None:
    if rank == 1:
        checkpointer._place.store.__class__ = DeadlyDisk
    try:
        checkpointer.save(1, 1)
    except LostPeer as err:
        print(err.fact, flush=True)
        os._exit(7)  # gloo's group cannot be left without the other


def refuse_other_groups(checkpointer: Checkpointer) -> None:
    """Have torch plan over the checkpoint's own group or fail: the user's may be in use, or of NCCL."""
    real, own = dist.gather_object, checkpointer._place.ranks.group

    def gather_object(*args: Any, group: Any = None, **kwargs: Any) -> Any:
        assert group is own
        return real(*args, group=group, **kwargs)

    dist.gather_object = gather_object


def main() -> None:
    rank, world_size, last = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[5])
    folder = Path(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world_size)
    model, optimizer = build(world_size)
    checkpointer = Checkpointer(CheckpointConfig(uri=str(folder)), model=model, optimizer=optimizer)
    refuse_other_groups(checkpointer)
    start = checkpointer.restore()
    first = start.step if start else 0
    if "lose-a-peer" in sys.argv:
        lose_a_peer(checkpointer, rank)
    for step in range(first + 1, last + 1):
        train(model, optimizer, step)
    if world_size == 4:
        fail_to_save(checkpointer, rank)
    commit = checkpointer.save(last, last)
    found = image(model, optimizer)
    if rank == 0:
        assert commit.dense is not None
        np.savez(folder.parent / f"of-{world_size}-{last}.npz", **found)
        print(first, commit.dense.digest)
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
