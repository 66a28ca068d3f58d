"""The program with hooks of `ett bench telemetry`: a plain loop, in blocks of steps with hooks and without, by turns.

It says how long each block took, in nanoseconds of its thread: a hook waits for nothing, and what others do on the
machine meanwhile is not its cost. `python -m ett.bench_hooked_loop PAIRS STEPS`, as `ett launch` starts a module.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

BATCH = 8


def main(num_pairs: int, steps_per_block: int) -> None:
    import torch
    from torch.optim import optimizer as optimizer_module
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    torch.set_num_threads(1)
    num_rows = BATCH * steps_per_block
    loader = DataLoader(TensorDataset(torch.randn(num_rows, 16), torch.randn(num_rows, 1)), batch_size=BATCH)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def block_ns() -> int:
        begin_ns = time.thread_time_ns()
        for rows, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(rows), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return time.thread_time_ns() - begin_ns

    callbacks = optimizer_module._global_optimizer_post_hooks
    post_hooks: dict[Any, Any] = dict(callbacks)
    hooked: Any = vars(_BaseDataLoaderIter)["__next__"]

    def unhooked_ns() -> int:
        setattr(_BaseDataLoaderIter, "__next__", hooked.original)  # noqa: B010 - as hooks set it
        callbacks.clear()
        try:
            return block_ns()
        finally:
            setattr(_BaseDataLoaderIter, "__next__", hooked)  # noqa: B010 - as hooks set it
            callbacks.update(post_hooks)

    block_ns()  # the first steps warm torch up
    pairs = []
    for number in range(num_pairs):
        if number % 2:
            with_ns, without_ns = block_ns(), unhooked_ns()
        else:
            without_ns, with_ns = unhooked_ns(), block_ns()
        pairs.append((with_ns, without_ns))
    print(json.dumps(pairs))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
