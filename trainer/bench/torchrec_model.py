"""The model that `ett bench core` trains with our tables and with TorchRec's: everything but the tables is one code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ett.trainer.bench.zipf_ids import ZipfIds
from ett.trainer.dense.interaction import DotInteraction
from ett.trainer.dense.mlp import draw_weights, mlp
from ett.trainer.jagged import KeyedJaggedTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelWorkload:
    """A table of benchmarks/workloads/core.toml, which says what each field is."""

    tables: int
    rows: int
    dim: int
    ids: int
    zipf: float
    batch: int
    bottom: list[int]
    top: list[int]
    learning_rate: float
    batches: int

    @property
    def names(self) -> list[str]:
        return [f"t{number}" for number in range(self.tables)]


@dataclass(frozen=True, slots=True)
class BenchBatch:
    """One rank's batch: a feature `t…` for each table."""

    ids: KeyedJaggedTensor
    dense: Tensor  # float32 [B, bottom[0]]
    labels: Tensor  # float32 [B]


def make_batches(workload: ModelWorkload, rank: int, *, is_jagged: bool) -> list[BenchBatch]:
    """Return a rank's batches; lengths are all `ids`, or uniform from 0 to twice that."""
    zipf = ZipfIds(workload.rows, workload.zipf, seed=rank)
    random = np.random.default_rng(100 + rank)
    made = []
    for _ in range(workload.batches):
        shape = workload.tables * workload.batch
        lengths = random.integers(0, 2 * workload.ids + 1, shape) if is_jagged else np.full(shape, workload.ids)
        values = torch.from_numpy(zipf.draw(int(lengths.sum())))
        dense = torch.from_numpy(random.standard_normal((workload.batch, workload.bottom[0]), np.float32))
        labels = torch.from_numpy(random.integers(0, 2, workload.batch).astype(np.float32))
        ids = KeyedJaggedTensor(workload.names, values, None, torch.from_numpy(lengths)).sync()
        made.append(BenchBatch(ids, dense, labels))
    return made


class DenseNet(nn.Module):
    """Bottom MLP, dot interaction, top MLP."""

    def __init__(self, workload: ModelWorkload) -> None:
        super().__init__()
        assert workload.bottom[-1] == workload.dim
        self.bottom = mlp(workload.bottom, ends_in_relu=True)
        self.interaction = DotInteraction(workload.tables + 1, workload.dim)
        self.top = mlp([self.interaction.width, *workload.top])
        draw_weights(self, torch.Generator().manual_seed(1))

    def forward(self, dense: Tensor, pooled_BFD: Tensor) -> Tensor:
        vectors = torch.cat((self.bottom(dense)[:, None], pooled_BFD), dim=1)
        logits: Tensor = self.top(self.interaction(vectors)).squeeze(1)
        return logits


class BagNet(nn.Module):
    """Over an EmbeddingBagCollection of either library."""

    def __init__(self, workload: ModelWorkload, tables: nn.Module) -> None:
        super().__init__()
        self.tables, self.dense_net = tables, DenseNet(workload)
        self._names = workload.names

    def forward(self, dense: Tensor, ids: Any) -> Tensor:
        pooled = self.tables(ids).to_dict()  # by name: TorchRec's features stand in the order of its plan
        logits: Tensor = self.dense_net(dense, torch.stack([pooled[name] for name in self._names], dim=1))
        return logits


class RowNet(nn.Module):
    """Over an EmbeddingCollection of either library: sums each example's rows."""

    def __init__(self, workload: ModelWorkload, tables: nn.Module) -> None:
        super().__init__()
        self.tables, self.dense_net = tables, DenseNet(workload)

    def forward(self, dense: Tensor, ids: Any) -> Tensor:
        found: Mapping[str, Any] = self.tables(ids)
        pooled = [_sum_of_examples(part.values(), part.lengths()) for part in found.values()]
        logits: Tensor = self.dense_net(dense, torch.stack(pooled, dim=1))
        return logits


def _sum_of_examples(rows_LD: Tensor, lengths: Tensor) -> Tensor:
    examples = torch.repeat_interleave(torch.arange(len(lengths)), lengths, output_size=len(rows_LD))
    return rows_LD.new_zeros(len(lengths), rows_LD.shape[1]).index_add(0, examples, rows_LD)


def loss_of(logits: Tensor, labels: Tensor, global_batch: int) -> Tensor:
    """Return this rank's part of the global batch's mean loss."""
    return binary_cross_entropy_with_logits(logits, labels, reduction="sum") / global_batch
