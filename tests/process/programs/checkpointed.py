"""Ten steps of a model with Checkpointer, a commit every 5th; says where it began."""

import torch

import ett
from ett.checkpoint import CheckpointConfig, Checkpointer

run = ett.init()
config = CheckpointConfig(interval="5 steps", background=False)  # a commit is there when the next step begins
checkpointer = Checkpointer(config, model=torch.nn.Linear(2, 2))
start = checkpointer.restore()
print("began at", start.step if start else 0, flush=True)
for step in range(start.step + 1 if start else 1, 11):
    with run.step(samples=4, global_samples=4):
        pass
    checkpointer.step(step, step * 4)
run.train_end()
checkpointer.close()
