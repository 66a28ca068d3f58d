"""A plain PyTorch program: it trains, evaluates, saves, and goes on from what it saved. It never imports ett.

ett launch --max-restarts 1 examples/plain_loop.py
ett report JOB
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1, help="batches that make one step")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--step-s", type=float, default=0.0, help="time to add to each batch")
    parser.add_argument("--compile", metavar="BACKEND", default="")
    parser.add_argument("--checkpoint", default="plain_loop.pt")
    args = parser.parse_args()

    torch.manual_seed(0)
    rows = torch.randn(args.rows, 8)
    train_data = TensorDataset(rows, rows.sum(1, keepdim=True))
    test_data = TensorDataset(rows[:64], rows[:64].sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to("cpu")
    forward = torch.compile(model, backend=args.compile) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["batches"]

    per_epoch = args.rows // args.batch
    for epoch in range(start // per_epoch, args.epochs):
        skip = (start % per_epoch) * args.batch if epoch == start // per_epoch else 0
        model.train()
        for batch, (x, y) in enumerate(DataLoader(Subset(train_data, range(skip, args.rows)), batch_size=args.batch)):
            loss = nn.functional.mse_loss(forward(x), y)
            loss.backward()
            time.sleep(args.step_s)
            done = epoch * per_epoch + skip // args.batch + batch + 1
            if done % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            if done % (args.save_every * args.accumulate) == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": done}
                torch.save(state, args.checkpoint + ".tmp")
                os.replace(args.checkpoint + ".tmp", args.checkpoint)
        model.eval()
        with torch.no_grad():
            error = sum(float(nn.functional.mse_loss(model(x), y)) for x, y in DataLoader(test_data, batch_size=16))
        print(f"epoch {epoch}: test error {error / 4:.5f}", flush=True)
    torch.save(model.state_dict(), args.checkpoint + ".final")
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"weights {float(weights.double().sum()).hex()}")


if __name__ == "__main__":
    main()
