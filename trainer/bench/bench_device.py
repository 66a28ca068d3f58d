"""Figures of tables in device memory: kernels beside a copy, and a training step beside torch's own EmbeddingBag."""

from __future__ import annotations

import statistics
import time
import tomllib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.trainer.bench.device_model import DEVICE, WORKLOAD, Ours, Peer, Side, device_s, make_batches, without_graphs
from ett.trainer.embedding.fused_optimizer import EmbOptimType
from ett.trainer.kernels.rows import gather_rows, scatter_rows
from ett.trainer.sparse import row_kernels


def device_figures(quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return the figures that need a GPU, and what they were made of; nothing on a machine without one.

    Raises: ThresholdMissed: ours does not train what the peer trains, so no time means anything.
    """
    workload = tomllib.loads(WORKLOAD.read_text())
    torch.set_float32_matmul_precision("high")  # for ours and the peer
    _check_against_peer(workload)
    gather, detail = _gather_figure(workload)
    host, host_detail = _host_figure(workload)
    rounds = 3 if quick else workload["train"]["rounds"]
    step, step_detail = _step_figure(workload, rounds=rounds)
    if not quick:
        launched, of_launched = _step_figure(without_graphs(workload), rounds=rounds)
        step_detail |= {f"without_graphs_{name}": value for name, value in of_launched.items()}
        step_detail["without_graphs_all_hbm_vs_embedding_bag"] = round(statistics.median(launched.samples), 3)
    return [gather, host, step], detail | host_detail | step_detail


def _gather_figure(workload: dict[str, Any]) -> tuple[Measured, dict[str, Any]]:
    """Random rows out of all rows, and into them, against a copy; bytes read and written both count."""
    sizes, dim = workload["copy"], workload["tables"]["dim"]
    table = torch.empty(workload["tables"]["rows"], dim, device=DEVICE).uniform_()
    slots = torch.randperm(len(table), device=DEVICE)[: sizes["gather_rows"]]
    rows = gather_rows(table, slots)
    if not torch.equal(rows[:1000], table[slots[:1000]]):
        raise ThresholdMissed("the gather kernel returned other rows than indexing does")
    source = torch.empty(sizes["bytes"] // 4, device=DEVICE)
    target = torch.empty_like(source)
    rates: dict[str, list[float]] = {"copy": [], "gather": [], "scatter": [], "index_select": []}
    for _ in range(sizes["rounds"]):
        rates["copy"].append(2 * sizes["bytes"] / device_s(lambda: target.copy_(source)))
        rates["gather"].append(2 * rows.nbytes / device_s(lambda: gather_rows(table, slots)))
        rates["scatter"].append(2 * rows.nbytes / device_s(lambda: scatter_rows(table, slots, rows)))
        rates["index_select"].append(2 * rows.nbytes / device_s(lambda: table.index_select(0, slots)))
    slower = [min(g, s) / c for g, s, c in zip(rates["gather"], rates["scatter"], rates["copy"], strict=True)]
    detail = {f"{name}_tb_per_s": round(statistics.median(values) / 1e12, 3) for name, values in rates.items()}
    return Measured(name="gather_vs_copy_bandwidth", unit="x", samples=slower), detail


def _host_figure(workload: dict[str, Any]) -> tuple[Measured, dict[str, Any]]:
    """Rows gathered by all cores against a copy by all cores, of as many bytes."""
    sizes, dim, threads = workload["host"], workload["tables"]["dim"], torch.get_num_threads()
    table = torch.empty(sizes["rows"], dim).uniform_()
    slots = np.random.default_rng(1).integers(0, sizes["rows"], sizes["gather_rows"])
    out, flat = torch.empty(sizes["gather_rows"], dim), torch.empty(sizes["gather_rows"], dim)

    def gather() -> None:
        row_kernels.copy_rows(table, slots, out, None, threads=threads)

    gather()
    if not torch.equal(out, table[torch.from_numpy(slots)]):
        raise ThresholdMissed("the host's gather returned other rows than indexing does")
    copies, gathers = [], []
    for _ in range(10):
        copies.append(2 * flat.nbytes / _host_s(lambda: flat.copy_(out)))
        gathers.append(2 * out.nbytes / _host_s(gather))
    figure = Measured(
        name="host_gather_vs_memory_bandwidth",
        unit="x",
        samples=[g / c for g, c in zip(gathers, copies, strict=True)],
    )
    return figure, {
        "host_threads": threads,
        "host_copy_gb_per_s": round(statistics.median(copies) / 1e9, 2),
        "host_gather_gb_per_s": round(statistics.median(gathers) / 1e9, 2),
    }


def _step_figure(workload: dict[str, Any], *, rounds: int) -> tuple[Measured, dict[str, Any]]:
    """Samples/s of whole training steps: ours against the fastest of the peer's optimizers, in turn."""
    optimizer = EmbOptimType(workload["tables"]["optimizer"])
    sides: dict[str, Side] = {"ours": Ours(workload, optimizer)}
    sides |= {name: Peer(workload, kind) for name, kind in (("adagrad", torch.optim.Adagrad), ("sgd", torch.optim.SGD))}
    batches = {name: side.laid_out(make_batches(workload)) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            work = partial(side.train, batches[name], workload["train"]["steps"])
            times[name].append(device_s(work))
    samples = workload["train"]["batch_size"] * workload["train"]["steps"]
    rates = {name: [samples / each for each in values[1:]] for name, values in times.items()}  # the first one compiles
    best = max(("adagrad", "sgd"), key=lambda name: statistics.median(rates[name]))
    ratios = [ours / peer for ours, peer in zip(rates["ours"], rates[best], strict=True)]
    detail = {f"step_{name}_samples_per_s": round(statistics.median(values)) for name, values in rates.items()}
    return Measured(name="all_hbm_vs_embedding_bag", unit="x", samples=ratios), detail | {"step_peer": best}


def _check_against_peer(workload: dict[str, Any]) -> None:
    """Three steps of SGD on small tables, with the same rows and batches on both sides."""
    small = workload | {
        "tables": workload["tables"] | {"rows": 26_000},
        "train": workload["train"] | {"batch_size": 512},
    }
    ours, peer = Ours(small, EmbOptimType.EXACT_SGD), Peer(small, torch.optim.SGD)
    with torch.no_grad():
        peer.bag.weight.copy_(torch.cat([ours.tables.state_dict()[f"embedding_bags.{n}.weight"] for n in ours.names]))
    batches = make_batches(small)
    for side in (ours, peer):
        side.train(side.laid_out(batches), 3)
    found = torch.cat([ours.tables.state_dict()[f"embedding_bags.{name}.weight"] for name in ours.names])
    # Gradients are sums of a few hundred terms in another order, through TF32 products: 2^-10 of an update of 1e-2.
    if not torch.allclose(found, peer.bag.weight, rtol=0, atol=1e-2 * 2**-10):
        worst = float((found - peer.bag.weight).abs().max())
        raise ThresholdMissed(f"after 3 steps a row differs by {worst:.3g} from torch.nn.EmbeddingBag's")


def _host_s(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s
