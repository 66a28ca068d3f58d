"""Join the other ranks of the job, from the environment that the supervisor gives its workers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ett.in_time import ended_in_time
from ett.trainer.comm.collectives import Collectives, GroupCollectives, LocalCollectives
from ett.trainer.comm.host_memory import share_host_memory

log = logging.getLogger(__name__)
LEAVE_S = 10.0  # closing connections takes milliseconds; NCCL may wait for what a peer that is gone never finished


def join_process_group(
    environ: Mapping[str, str], timeout_s: float, device: torch.device | None = None
) -> tuple[Collectives, Store | None]:
    """Return the job's collectives and a store that all its ranks share; world size 1 opens no socket, has no store.

    Args:
        environ: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them; without WORLD_SIZE: one rank.
        timeout_s: longest wait for another rank in a collective; a dead peer is noticed at once, by its socket.
        device: of the dense part. Tensors of the host go over gloo, always; those of a CUDA device that no other rank
            of the host has, over NCCL.
    """
    if int(environ.get("WORLD_SIZE", "1")) == 1:
        return LocalCollectives(), None
    timeout = timedelta(seconds=timeout_s)
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    group_store = PrefixStore("group", store)
    dist.init_process_group(
        _backend(environ, device), store=group_store, rank=rank, world_size=world_size, timeout=timeout
    )
    return share_host_memory(GroupCollectives(timeout=timeout)), PrefixStore("errors", store)


def _backend(environ: Mapping[str, str], device: torch.device | None) -> str:
    if device is None or device.type != "cuda":
        return "gloo"
    ranks_here = int(environ.get("LOCAL_WORLD_SIZE", environ["WORLD_SIZE"]))
    return "cpu:gloo,cuda:nccl" if ranks_here <= torch.cuda.device_count() else "gloo"


def leave_process_group() -> bool:
    """Close the process group, if there is one; a peer or a device that hangs holds this process for LEAVE_S at most.

    Returns: whether it is closed. One that is not ends with the process, which must join no other: that one would be
    torn down when the first closes after all.
    """
    if not dist.is_initialized() or ended_in_time(dist.destroy_process_group, LEAVE_S, "ett-leave-group"):
        return True
    log.warning("the process group was not closed within %.0f s; this process ends it", LEAVE_S)
    return False
