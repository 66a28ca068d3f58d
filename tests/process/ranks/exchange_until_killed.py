"""One rank: argv as collections_over_gloo.py. Exchanges through host memory for ever; says so, and how it ended."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from ett.errors import LostPeer
from ett.trainer.comm.collectives import GroupCollectives
from ett.trainer.comm.host_memory import HostMemoryCollectives, share_host_memory


def main(rank: int, world_size: int, store: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    collectives = share_host_memory(GroupCollectives())
    assert isinstance(collectives, HostMemoryCollectives)
    rows = torch.arange(1_000_000)
    for number in range(1_000_000):
        try:
            collectives.all_to_all(rows, [500_000] * 2, [500_000] * 2)
        except LostPeer:
            print("LostPeer", flush=True)
            return
        if number == 3:
            print("exchanged", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
