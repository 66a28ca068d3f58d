"""What the device figures train: a DLRM over tables in device memory, and over torch's own EmbeddingBag."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ett.figures import FIGURES
from ett.trainer.dense.interaction import DotInteraction
from ett.trainer.dense.mlp import draw_weights, mlp
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.embedding.embedding_bag_collection import EmbeddingBagCollection
from ett.trainer.embedding.fused_optimizer import EmbOptimType, FusedParams
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.jagged import KeyedJaggedTensor

WORKLOAD = FIGURES.parent / "workloads" / "core-device.toml"
DEVICE = torch.device("cuda")
DenseStep = Callable[[Tensor, Tensor], Tensor]  # dense features, pooled rows -> logits
Batch = tuple[Tensor, Tensor, Tensor]  # ids, dense features, labels


class Dense(nn.Module):
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


class Side(ABC):
    """A model that trains: rows, and the same dense part with torch's fused Adam."""

    def __init__(self, workload: dict[str, Any]) -> None:
        tables = workload["tables"]
        self.most_ahead, self._running = 0, deque[torch.cuda.Event]()  # 0: any number of steps
        self.count, self.dim = tables["count"], tables["dim"]
        self.rows_each = tables["rows"] // tables["count"]
        dense = self.module = Dense(workload).to(DEVICE)
        self.adam = torch.optim.Adam(dense.parameters(), lr=1e-3, fused=True)
        self.dense: DenseStep = self._graphed(dense, workload) if workload["dense"]["cuda_graphs"] else dense

    def _graphed(self, dense: Dense, workload: dict[str, Any]) -> DenseStep:
        """Return the dense part as one launch forward and one backward, for batches of the workload's size."""
        batch_size = workload["train"]["batch_size"]
        features = torch.randn(batch_size, workload["dense"]["num_dense"], device=DEVICE)
        pooled = torch.randn(batch_size, self.count, self.dim, device=DEVICE, requires_grad=True)
        return cast(DenseStep, torch.cuda.make_graphed_callables(dense, (features, pooled)))

    def laid_out(self, batches: list[Batch]) -> list[Batch]:
        """Return batches with the ids as this side wants them: what a reader would have done."""
        return [(self.ids(ids_FB), dense, labels) for ids_FB, dense, labels in batches]

    def train(self, batches: list[Batch], steps: int, *, is_waited_for: bool = True) -> None:
        """Args: batches: laid out. is_waited_for: return when the device is done, or raise what was wrong."""
        for step in range(steps):
            self.train_one(batches[step % len(batches)])
        if is_waited_for:
            self.end()

    def train_one(self, batch: Batch) -> None:
        ids_L, dense, labels = batch
        loss = binary_cross_entropy_with_logits(self.dense(dense, self.pooled(ids_L)), labels)
        self.zero_grad()
        torch.autograd.backward(loss)
        self.step()
        self._wait_for_earlier()

    def _wait_for_earlier(self) -> None:
        """Let the host be `most_ahead` steps before the device at most, as one that reads a loss now and then."""
        if not self.most_ahead:
            return
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record()
        self._running.append(done)
        if len(self._running) > self.most_ahead:
            self._running.popleft().synchronize()

    @abstractmethod
    def ids(self, ids_FB: Tensor) -> Tensor:
        """Return int64 [F * B]."""

    @abstractmethod
    def pooled(self, ids_L: Tensor) -> Tensor:
        """Return float32 [B, F, D]."""

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        self.adam.step()

    def end(self) -> None:
        """Raise what was wrong with a batch; the peer finds nothing."""
        return


class Ours(Side):
    def __init__(
        self, workload: dict[str, Any], optimizer: EmbOptimType, cache_params: CacheParams | None = None
    ) -> None:
        super().__init__(workload)
        self.names = [f"t{i}" for i in range(self.count)]
        tables = [EmbeddingBagConfig(self.rows_each, self.dim, name) for name in self.names]
        fused = FusedParams(optimizer=optimizer, learning_rate=0.01)
        self.tables = EmbeddingBagCollection(tables, device=DEVICE, fused_params=fused, cache_params=cache_params)
        self._lengths: Tensor | None = None  # of bags of one id, the same for every batch
        self._offsets: Tensor | None = None

    def ids(self, ids_FB: Tensor) -> Tensor:
        return ids_FB.reshape(-1)

    def features(self, ids_L: Tensor) -> KeyedJaggedTensor:
        if self._lengths is None or len(self._lengths) != len(ids_L):
            self._lengths = torch.ones_like(ids_L)
            self._offsets = torch.arange(len(ids_L) + 1, device=DEVICE)
        return KeyedJaggedTensor(self.names, ids_L, None, self._lengths, self._offsets, stride=len(ids_L) // self.count)

    def pooled(self, ids_L: Tensor) -> Tensor:
        values: Tensor = self.tables(self.features(ids_L)).values()
        return values.view(-1, self.count, self.dim)

    def end(self) -> None:
        self.tables.check()


class Peer(Side):
    """One `torch.nn.EmbeddingBag` that has all tables below each other, with sparse gradients."""

    def __init__(self, workload: dict[str, Any], optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__(workload)
        num_rows = self.rows_each * self.count
        self.bag = nn.EmbeddingBag(num_rows, self.dim, mode="sum", sparse=True, device=DEVICE)
        nn.init.uniform_(self.bag.weight, -0.01, 0.01)
        self.optimizer = optimizer(self.bag.parameters(), lr=0.01)
        self.first_rows = torch.arange(self.count, device=DEVICE)[:, None] * self.rows_each
        self._offsets: Tensor | None = None  # of bags of one id

    def ids(self, ids_FB: Tensor) -> Tensor:
        ids_L: Tensor = (ids_FB + self.first_rows).T.reshape(-1)
        return ids_L

    def pooled(self, ids_L: Tensor) -> Tensor:
        if self._offsets is None or len(self._offsets) != len(ids_L):
            self._offsets = torch.arange(len(ids_L), device=DEVICE)
        pooled: Tensor = self.bag(ids_L, self._offsets)
        return pooled.view(-1, self.count, self.dim)

    def zero_grad(self) -> None:
        super().zero_grad()
        self.optimizer.zero_grad()

    def step(self) -> None:
        super().step()
        self.optimizer.step()


def without_graphs(workload: dict[str, Any]) -> dict[str, Any]:
    return workload | {"dense": workload["dense"] | {"cuda_graphs": False}}


def make_batches(workload: dict[str, Any]) -> list[Batch]:
    """Return ids int64 [F, B] with a Zipf distribution in each table, dense features and labels."""
    tables, train = workload["tables"], workload["train"]
    rows, shape = tables["rows"] // tables["count"], (tables["count"], train["batch_size"])
    generator = torch.Generator(DEVICE).manual_seed(7)
    ends = torch.arange(1, rows + 1, device=DEVICE, dtype=torch.float64).pow(-tables["zipf"]).cumsum(0)
    id_of_rank = torch.randperm(rows, device=DEVICE, generator=generator)
    batches = []
    for _ in range(train["batches"]):
        drawn = torch.rand(shape, device=DEVICE, dtype=torch.float64, generator=generator) * ends[-1]
        ids = id_of_rank[torch.searchsorted(ends, drawn).clamp(max=rows - 1)]
        dense = torch.randn(shape[1], workload["dense"]["num_dense"], device=DEVICE, generator=generator)
        labels = (torch.rand(shape[1], device=DEVICE, generator=generator) < 0.3).float()
        batches.append((ids, dense, labels))
    return batches


def device_s(work: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms / 1e3
