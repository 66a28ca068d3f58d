"""Figures of tables in device memory: kernels beside a copy, and a training step beside torch's own EmbeddingBag."""

from __future__ import annotations

import statistics
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ett.errors import ThresholdMissed
from ett.figures import FIGURES, Measured
from ett.trainer.dense.interaction import DotInteraction
from ett.trainer.dense.mlp import draw_weights, mlp
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.embedding.embedding_bag_collection import EmbeddingBagCollection
from ett.trainer.embedding.fused_optimizer import EmbOptimType, FusedParams
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.jagged import KeyedJaggedTensor
from ett.trainer.kernels.rows import gather_rows, scatter_rows
from ett.trainer.sparse import row_kernels

_WORKLOAD = FIGURES.parent / "workloads" / "core-device.toml"
_DEVICE = torch.device("cuda")


def device_figures(quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return the figures that need a GPU, and what they were made of; nothing on a machine without one.

    Raises: ThresholdMissed: ours does not train what the peer trains, so no time means anything.
    """
    if not torch.cuda.is_available():
        return [], {}
    workload = tomllib.loads(_WORKLOAD.read_text())
    torch.set_float32_matmul_precision("high")  # for ours and the peer
    _check_against_peer(workload)
    gather, detail = _gather_figure(workload)
    host, host_detail = _host_figure(workload)
    step, step_detail = _step_figure(workload, rounds=3 if quick else workload["train"]["rounds"])
    return [gather, host, step], detail | host_detail | step_detail


def _gather_figure(workload: dict[str, Any]) -> tuple[Measured, dict[str, Any]]:
    """Random rows out of all rows, and into them, against a copy; bytes read and written both count."""
    sizes, dim = workload["copy"], workload["tables"]["dim"]
    table = torch.empty(workload["tables"]["rows"], dim, device=_DEVICE).uniform_()
    slots = torch.randperm(len(table), device=_DEVICE)[: sizes["gather_rows"]]
    rows = gather_rows(table, slots)
    if not torch.equal(rows[:1000], table[slots[:1000]]):
        raise ThresholdMissed("the gather kernel returned other rows than indexing does")
    source = torch.empty(sizes["bytes"] // 4, device=_DEVICE)
    target = torch.empty_like(source)
    rates: dict[str, list[float]] = {"copy": [], "gather": [], "scatter": [], "index_select": []}
    for _ in range(sizes["rounds"]):
        rates["copy"].append(2 * sizes["bytes"] / _device_s(lambda: target.copy_(source)))
        rates["gather"].append(2 * rows.nbytes / _device_s(lambda: gather_rows(table, slots)))
        rates["scatter"].append(2 * rows.nbytes / _device_s(lambda: scatter_rows(table, slots, rows)))
        rates["index_select"].append(2 * rows.nbytes / _device_s(lambda: table.index_select(0, slots)))
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
    sides: dict[str, _Side] = {"ours": _Ours(workload, optimizer)}
    sides |= {
        name: _Peer(workload, kind) for name, kind in (("adagrad", torch.optim.Adagrad), ("sgd", torch.optim.SGD))
    }
    batches = _batches(workload)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            times[name].append(_device_s(lambda side=side: side.train(batches, workload["train"]["steps"])))  # type: ignore[misc]
    samples = workload["train"]["batch_size"] * workload["train"]["steps"]
    rates = {name: [samples / each for each in values[1:]] for name, values in times.items()}  # the first one compiles
    best = max(("adagrad", "sgd"), key=lambda name: statistics.median(rates[name]))
    ratios = [ours / peer for ours, peer in zip(rates["ours"], rates[best], strict=True)]
    detail = {f"step_{name}_samples_per_s": round(statistics.median(values)) for name, values in rates.items()}
    return Measured(name="all_hbm_vs_embedding_bag", unit="x", samples=ratios), detail | {"step_peer": best}


class _Dense(nn.Module):
    def __init__(self, workload: dict[str, Any]) -> None:
        super().__init__()
        dense, tables = workload["dense"], workload["tables"]
        self.bottom = mlp([dense["num_dense"], *dense["bottom_mlp"], tables["dim"]], ends_in_relu=True)
        self.interaction = DotInteraction(1 + tables["count"], tables["dim"])
        self.top = mlp([self.interaction.width, *dense["top_mlp"], 1])
        draw_weights(self, torch.Generator().manual_seed(1))

    def forward(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        vectors = torch.cat((self.bottom(dense_BN).unsqueeze(1), pooled_BFD), dim=1)
        logits: Tensor = self.top(self.interaction(vectors)).squeeze(1)
        return logits


class _Side(ABC):
    """A model that trains: rows, and the same dense part with torch's fused Adam."""

    def __init__(self, workload: dict[str, Any]) -> None:
        tables = workload["tables"]
        self.count, self.dim = tables["count"], tables["dim"]
        self.rows_each = tables["rows"] // tables["count"]
        self.dense = _Dense(workload).to(_DEVICE)
        self.adam = torch.optim.Adam(self.dense.parameters(), lr=1e-3, fused=True)

    def train(self, batches: list[tuple[Tensor, Tensor, Tensor]], steps: int) -> None:
        for step in range(steps):
            self.train_one(batches[step % len(batches)])
        self.end()

    def train_one(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        ids_FB, dense, labels = batch
        loss = binary_cross_entropy_with_logits(self.dense(dense, self.pooled(ids_FB)), labels)
        self.zero_grad()
        torch.autograd.backward(loss)
        self.step()

    @abstractmethod
    def pooled(self, ids_FB: Tensor) -> Tensor:
        """Return float32 [B, F, D]."""

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        self.adam.step()

    def end(self) -> None:
        """Raise what was wrong with a batch; the peer finds nothing."""
        return


class _Ours(_Side):
    def __init__(
        self, workload: dict[str, Any], optimizer: EmbOptimType, cache_params: CacheParams | None = None
    ) -> None:
        super().__init__(workload)
        self.names = [f"t{i}" for i in range(self.count)]
        tables = [EmbeddingBagConfig(self.rows_each, self.dim, name) for name in self.names]
        fused = FusedParams(optimizer=optimizer, learning_rate=0.01)
        self.tables = EmbeddingBagCollection(tables, device=_DEVICE, fused_params=fused, cache_params=cache_params)

    def features(self, ids_FB: Tensor) -> KeyedJaggedTensor:
        lengths = torch.ones(ids_FB.numel(), dtype=torch.int64, device=_DEVICE)
        return KeyedJaggedTensor(self.names, ids_FB.view(-1), None, lengths, stride=ids_FB.shape[1])

    def pooled(self, ids_FB: Tensor) -> Tensor:
        values: Tensor = self.tables(self.features(ids_FB)).values()
        return values.view(ids_FB.shape[1], self.count, self.dim)

    def end(self) -> None:
        self.tables.check()


class _Peer(_Side):
    """One `torch.nn.EmbeddingBag` that has all tables below each other, with sparse gradients."""

    def __init__(self, workload: dict[str, Any], optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__(workload)
        num_rows = self.rows_each * self.count
        self.bag = nn.EmbeddingBag(num_rows, self.dim, mode="sum", sparse=True, device=_DEVICE)
        nn.init.uniform_(self.bag.weight, -0.01, 0.01)
        self.optimizer = optimizer(self.bag.parameters(), lr=0.01)
        self.first_rows = torch.arange(self.count, device=_DEVICE)[:, None] * self.rows_each

    def pooled(self, ids_FB: Tensor) -> Tensor:
        ids = (ids_FB + self.first_rows).T.reshape(-1)
        pooled: Tensor = self.bag(ids, torch.arange(len(ids), device=_DEVICE))
        return pooled.view(ids_FB.shape[1], self.count, self.dim)

    def zero_grad(self) -> None:
        super().zero_grad()
        self.optimizer.zero_grad()

    def step(self) -> None:
        super().step()
        self.optimizer.step()


def _check_against_peer(workload: dict[str, Any]) -> None:
    """Three steps of SGD on small tables, with the same rows and batches on both sides."""
    small = workload | {
        "tables": workload["tables"] | {"rows": 26_000},
        "train": workload["train"] | {"batch_size": 512},
    }
    ours, peer = _Ours(small, EmbOptimType.EXACT_SGD), _Peer(small, torch.optim.SGD)
    with torch.no_grad():
        peer.bag.weight.copy_(torch.cat([ours.tables.state_dict()[f"embedding_bags.{n}.weight"] for n in ours.names]))
    batches = _batches(small)
    for side in (ours, peer):
        side.train(batches, 3)
    found = torch.cat([ours.tables.state_dict()[f"embedding_bags.{name}.weight"] for name in ours.names])
    # Gradients are sums of a few hundred terms in another order, through TF32 products: 2^-10 of an update of 1e-2.
    if not torch.allclose(found, peer.bag.weight, rtol=0, atol=1e-2 * 2**-10):
        worst = float((found - peer.bag.weight).abs().max())
        raise ThresholdMissed(f"after 3 steps a row differs by {worst:.3g} from torch.nn.EmbeddingBag's")


def _batches(workload: dict[str, Any]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return ids int64 [F, B] with a Zipf distribution in each table, dense features and labels."""
    tables, train = workload["tables"], workload["train"]
    rows, shape = tables["rows"] // tables["count"], (tables["count"], train["batch_size"])
    generator = torch.Generator(_DEVICE).manual_seed(7)
    ends = torch.arange(1, rows + 1, device=_DEVICE, dtype=torch.float64).pow(-tables["zipf"]).cumsum(0)
    id_of_rank = torch.randperm(rows, device=_DEVICE, generator=generator)
    batches = []
    for _ in range(train["batches"]):
        drawn = torch.rand(shape, device=_DEVICE, dtype=torch.float64, generator=generator) * ends[-1]
        ids = id_of_rank[torch.searchsorted(ends, drawn).clamp(max=rows - 1)]
        dense = torch.randn(shape[1], workload["dense"]["num_dense"], device=_DEVICE, generator=generator)
        labels = (torch.rand(shape[1], device=_DEVICE, generator=generator) < 0.3).float()
        batches.append((ids, dense, labels))
    return batches


def _device_s(work: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms / 1e3


def _host_s(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s
