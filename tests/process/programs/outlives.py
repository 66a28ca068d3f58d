"""A training function that outlives the loss of a rank: 20 steps, a checkpoint every 4th, the weights as hex."""

import os

import torch
import torch.distributed as dist

import ett
from ett.checkpoint import CheckpointConfig, Checkpointer

run = ett.init()


@ett.restartable
def train() -> None:
    with run.span("process_group"):
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    config = CheckpointConfig(interval="4 steps", background=False)  # a commit is there when the next step begins
    checkpointer = Checkpointer(config, model=model, optimizer=optimizer)
    start = checkpointer.restore()
    step = start.step if start else 0
    print(f"pid {os.getpid()} generation {run.generation} begins after step {step}", flush=True)
    while step < 20:
        draw = torch.Generator().manual_seed(100 * step + run.rank)
        with run.step(global_samples=8 * run.world_size, step=step + 1):
            loss = model(torch.randn(8, 4, generator=draw)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
        step += 1
        checkpointer.step(step, 8 * run.world_size * step)
    run.train_end()
    print("weights", [value.hex() for value in torch.cat([p.flatten() for p in model.parameters()]).double().tolist()])
    dist.destroy_process_group()


train()
