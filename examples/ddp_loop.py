"""A DistributedDataParallel program as torchrun starts it; it never imports ett.

ett launch --nproc 2 --max-restarts 1 examples/ddp_loop.py
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--checkpoint", default="ddp_loop.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = torch.randn(640, 8)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    model = nn.Linear(8, 1).to("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    start = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
    parallel = DistributedDataParallel(model)

    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(parallel(x), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, args.checkpoint)
            print(f"epoch {epoch} done", flush=True)
        dist.barrier()
    if dist.get_rank() == 0:
        print(f"weights {float(next(model.parameters()).detach().double().sum()).hex()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
