"""One rank of the comparison with TorchRec: argv = name of the workload, its JSON. Rank 0 prints what it measured.

Both train the same model from the same rows on the same batches, in this process, in turn, with one thread.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ett.errors import ThresholdMissed
from ett.trainer.bench.torchrec_model import (
    BagNet,
    BenchBatch,
    ModelWorkload,
    RowNet,
    loss_of,
    make_batches,
)
from ett.trainer.comm.collectives import Collectives
from ett.trainer.comm.process_group import join_process_group, leave_process_group
from ett.trainer.dense.gradient_buckets import GradientBuckets
from ett.trainer.embedding.embedding_bag_collection import EmbeddingBagCollection
from ett.trainer.embedding.embedding_collection import EmbeddingCollection
from ett.trainer.embedding.fused_optimizer import FusedParams
from ett.trainer.embedding.sharding import ShardingType, TableSharding, table_wise_plan
from ett.trainer.embedding.table_config import EmbeddingBagConfig, EmbeddingConfig
from ett.trainer.interop import to_torchrec
from ett.trainer.sparse.hashing import RowInit

_EPS = 1e-8
_PLANNER = ".distributed.planner"
_BUCKET_BYTES = 25 << 20  # as DistributedDataParallel's
# Losses are sums of 2,048 float32 terms in another order, over some steps that each move weights by other roundings.
_LOSS_TOLERANCE = 1e-5

Step = Callable[[int], float]


def main(name: str, settings: dict[str, Any]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    workload, pairs = ModelWorkload(**settings["model"]), settings["pairs"]
    collectives, _ = join_process_group(os.environ, timeout_s=120)
    try:
        is_bags = name == "tablewise"
        batches = make_batches(workload, collectives.rank, is_jagged=not is_bags)
        ours = our_step(workload, batches, collectives, is_bags=is_bags)
        theirs = torchrec_step(workload, batches, collectives, is_bags=is_bags)
        worst = checked_losses(ours, theirs, collectives, pairs["check_steps"])
        measured = measure(ours, theirs, collectives, pairs)
        if collectives.rank == 0:
            print(json.dumps(measured | {"worst_loss_difference": worst}))
    finally:
        leave_process_group()


def our_step(workload: ModelWorkload, batches: list[BenchBatch], collectives: Collectives, *, is_bags: bool) -> Step:
    fused = FusedParams(learning_rate=workload.learning_rate, eps=_EPS)
    net: nn.Module
    if is_bags:
        bags = [EmbeddingBagConfig(workload.rows, workload.dim, name) for name in workload.names]
        plan = table_wise_plan(bags, collectives.world_size)
        net = BagNet(workload, EmbeddingBagCollection(bags, fused_params=fused, plan=plan, collectives=collectives))
    else:
        tables = [EmbeddingConfig(workload.rows, workload.dim, name) for name in workload.names]
        rows = {name: TableSharding(ShardingType.ROW_WISE) for name in workload.names}
        net = RowNet(workload, EmbeddingCollection(tables, fused_params=fused, plan=rows, collectives=collectives))
    dense = net.get_submodule("dense_net")
    buckets = GradientBuckets(dense, collectives, bucket_bytes=_BUCKET_BYTES)
    optimizer = torch.optim.SGD(dense.parameters(), lr=workload.learning_rate / 10)
    global_batch = workload.batch * collectives.world_size

    def step(number: int) -> float:
        batch = batches[number % len(batches)]
        buckets.zero()
        loss = loss_of(net(batch.dense, batch.ids), batch.labels, global_batch)
        torch.autograd.backward(loss)
        wait = buckets.start_sum(loss.detach())
        global_loss = wait()
        optimizer.step()
        return global_loss

    return step


def torchrec_step(
    workload: ModelWorkload, batches: list[BenchBatch], collectives: Collectives, *, is_bags: bool
) -> Step:
    torchrec, distributed, planner = (import_module(f"torchrec{part}") for part in ("", ".distributed", _PLANNER))
    configs = torchrec.modules.embedding_configs
    fused = {
        "optimizer": import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "learning_rate": workload.learning_rate,
        "eps": _EPS,
    }
    shared = {"num_embeddings": workload.rows, "embedding_dim": workload.dim}
    net: nn.Module
    sharder: Any
    if is_bags:
        bags = [configs.EmbeddingBagConfig(name=name, feature_names=[name], **shared) for name in workload.names]
        net = BagNet(workload, torchrec.EmbeddingBagCollection(bags, device=torch.device("meta")))
        sharder = distributed.embeddingbag.EmbeddingBagCollectionSharder(fused_params=fused)
    else:
        tables = [configs.EmbeddingConfig(name=name, feature_names=[name], **shared) for name in workload.names]
        net = RowNet(workload, torchrec.EmbeddingCollection(tables, device=torch.device("meta")))
        sharder = distributed.embedding.EmbeddingCollectionSharder(fused_params=fused)
    limits = import_module(f"torchrec{_PLANNER}.types").ParameterConstraints(
        sharding_types=["table_wise" if is_bags else "row_wise"], compute_kernels=["fused"]
    )
    made = planner.EmbeddingShardingPlanner(
        topology=planner.Topology(world_size=collectives.world_size, compute_device="cpu"),
        constraints=dict.fromkeys(workload.names, limits),
    )
    plan = made.collective_plan(net, [sharder], None)
    model = distributed.DistributedModelParallel(net, device=torch.device("cpu"), plan=plan, sharders=[sharder])
    _copy_rows(model, workload, "embedding_bags" if is_bags else "embeddings")
    dense = [parameter for name, parameter in model.named_parameters() if "dense_net" in name]
    optimizer = torch.optim.SGD(dense, lr=workload.learning_rate / 10)
    theirs = [to_torchrec(batch.ids) for batch in batches]

    def step(number: int) -> float:
        batch = batches[number % len(batches)]
        optimizer.zero_grad()
        # Its gradients are means over ranks, so the loss is the mean of this rank's samples.
        loss = loss_of(model(batch.dense, theirs[number % len(batches)]), batch.labels, workload.batch)
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.detach())

    return step


def _copy_rows(model: nn.Module, workload: ModelWorkload, prefix: str) -> None:
    """Give TorchRec's shards the rows that ours start with."""
    state = model.state_dict()
    for name in workload.names:
        init = RowInit(f"{prefix}.{name}", seed=0, dim=workload.dim, scale=workload.rows**-0.5)
        key = next(key for key in state if key.endswith(f"{prefix}.{name}.weight"))
        for shard in state[key].local_shards():
            first = shard.metadata.shard_offsets[0]
            rows: Tensor = shard.tensor
            rows.copy_(torch.from_numpy(init.rows(np.arange(first, first + len(rows)))))


def checked_losses(ours: Step, theirs: Step, collectives: Collectives, num_steps: int) -> float:
    """Return the largest relative difference. Raises: ThresholdMissed: the two do not train the same."""
    pairs = []
    for number in range(num_steps):
        mine, other = ours(number), torch.tensor([theirs(number) / collectives.world_size])
        collectives.sum_in_place(other)()
        pairs.append((mine, float(other)))
    worst = max(abs(mine - other) / abs(other) for mine, other in pairs)
    if not worst <= _LOSS_TOLERANCE or pairs[0][0] == pairs[-1][0]:
        raise ThresholdMissed(
            f"losses are {[f'{mine:.7f} and {other:.7f}' for mine, other in pairs]}",
            expected=f"equal to {_LOSS_TOLERANCE} of their value, and not constant",
        )
    return worst


def measure(ours: Step, theirs: Step, collectives: Collectives, settings: dict[str, int]) -> dict[str, Any]:
    """Return seconds a step, wall and this rank's CPU, of each block of either."""
    for number in range(settings["warm_steps"]):
        ours(number)
        theirs(number)
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for pair in range(settings["pairs"]):
        order = [("ours", ours), ("theirs", theirs)]
        for name, step in order if pair % 2 == 0 else reversed(order):
            collectives.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for number in range(settings["steps"]):
                step(number)
            collectives.barrier()
            steps = settings["steps"]
            found[name].append(((time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps))
    return found


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
