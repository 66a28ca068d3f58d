"""A script of one's own whose start is a graph: `ett launch examples/startup.py`, then `ett report JOB --startup`.

What needs nothing of each other runs side by side: the data is opened while torch is imported, the model is built while
the checkpoint is looked for. A node that needs torch waits for `imports`, and only one thread imports it.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ett
from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.recovery.startup import Startup


def write_data() -> Path:
    """A stand-in for finding, opening and reading ahead in what you train on."""
    path = Path(tempfile.mkdtemp()) / "data.txt"
    draw = random.Random(1)
    path.write_text("\n".join(f"{draw.random()} {draw.random()}" for _ in range(20_000)))
    return path


def batches(path: Path) -> Iterator[list[list[float]]]:
    rows = [[float(word) for word in line.split()] for line in path.read_text().splitlines()]
    return (rows[begin : begin + 100] for begin in range(0, len(rows), 100))


def import_torch() -> None:
    import torch  # noqa: F401
    from torch import nn, optim  # noqa: F401


run = ett.init()
startup = Startup(run)  # Startup(run, "serial") to compare
data = startup.add("data_warmup", write_data)
imports = startup.add("imports", import_torch, on_main_thread=True)


def build() -> tuple:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


model = startup.add("model_build", build, after=[imports])


def restore() -> Checkpointer:
    config = CheckpointConfig(uri=str((run.job_dir or Path(tempfile.mkdtemp())) / "checkpoints"), interval="50 steps")
    checkpointer = Checkpointer(config, model=model.value[0], optimizer=model.value[1])
    checkpointer.restore()  # of a span of its own, "restore"
    return checkpointer


checkpointer = startup.add("restore", restore, after=[model])
startup.run()  # raises the first failure in this order, once nothing runs any more

import torch  # noqa: E402

network, optimizer = model.value
first, cursor = run.position
for step, rows in enumerate(batches(data.value), 1):
    if step <= first:
        continue
    with run.step(samples=len(rows), step=step):
        values = torch.tensor(rows)
        loss = ((network(values[:, :1].repeat(1, 2)) - values[:, 1:]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    checkpointer.value.step(step, step * len(rows))
run.train_end()
checkpointer.value.close()
print(f"loss {loss.item():.4f} after {step} steps")
