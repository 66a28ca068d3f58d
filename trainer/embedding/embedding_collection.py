"""TorchRec's `EmbeddingCollection`: a row for each id, for models of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ett.trainer.comm.collectives import Collectives, LocalCollectives
from ett.trainer.embedding.embedding_bag_collection import check_device, fused_state
from ett.trainer.embedding.feature_ids import FeatureIds, ids_of_slots, slots_of
from ett.trainer.embedding.fused_optimizer import FusedParams
from ett.trainer.embedding.rank_tables import RankTables
from ett.trainer.embedding.row_exchange import ExchangedRows, TableRowExchange
from ett.trainer.embedding.sharding import Plan
from ett.trainer.embedding.table_config import EmbeddingConfig, output_names
from ett.trainer.embedding.table_part import FoundRows, Summands, find_rows
from ett.trainer.jagged import JaggedTensor, KeyedJaggedTensor
from ett.trainer.sparse import row_kernels


class EmbeddingCollection(nn.Module):
    """Looks up a row for each id: KeyedJaggedTensor -> {feature: JaggedTensor}; tables may differ in width.

    A table `t` of a fixed size has this rank's rows in the parameter `embeddings.t.weight`; the rest is as in
    `EmbeddingBagCollection`.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        device: torch.device | None = None,
        need_indices: bool = False,
        *,
        fused_params: FusedParams | Mapping[str, FusedParams] | None = None,
        plan: Plan | None = None,
        collectives: Collectives | None = None,
        weights: Mapping[str, Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        """Make the tables, as `EmbeddingBagCollection` does.

        Args:
            need_indices: give each output its ids, as weights.
        """
        super().__init__()
        check_device(device)
        self._need_indices = need_indices
        made_for = LocalCollectives() if collectives is None else collectives
        self._tables = RankTables.checked(
            "embeddings", list(tables), made_for, plan=plan, fused_params=fused_params, weights=weights, seed=seed
        )
        self._configs = list(tables)
        names = [config.name for config in tables]
        self.embeddings = nn.ModuleDict(dict(zip(names, self._tables.parts, strict=True)))
        self._slots = slots_of(tables, [False] * len(tables))
        self._sharded = [t for t in range(len(tables)) if not self._tables.is_local(t)]
        self._exchange = TableRowExchange(self._tables, self._sharded)
        self._output_names = output_names(tables)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Return each feature's rows; every rank calls, and its batch may be empty.

        Raises: DataError: an id is out of its table's range. ConfigError: a feature is missing.
        """
        found = ids_of_slots(features, self._slots, self._configs, is_weighted=False)
        rows = _LookUp.apply(_RowLookup(self, found), *self._leaves())  # type: ignore[no-untyped-call]
        of_keys = features.to_dict()
        return {
            name: JaggedTensor(
                values,
                lengths=of_keys[slot.feature].lengths(),
                weights=of_keys[slot.feature].values() if self._need_indices else None,
            )
            for name, slot, values in zip(self._output_names, self._slots, rows, strict=True)
        }

    def embedding_configs(self) -> list[EmbeddingConfig]:
        return self._configs

    def need_indices(self) -> bool:
        return self._need_indices

    def set_learning_rate(self, learning_rate: float, table: str | None = None) -> None:
        """Set the learning rate of the next updates, of one table or of all."""
        self._tables.set_learning_rate(learning_rate, table)

    def fused_state(self) -> dict[str, Tensor]:
        """Return this rank's optimizer state by TorchRec's names, such as `t.momentum1`, sharing memory."""
        return fused_state(self.embeddings)

    def _leaves(self) -> list[Tensor]:
        if self._tables.params is None:
            return list(self.embeddings.parameters())
        return [torch.zeros((), requires_grad=True)]


class _RowLookup:
    """One batch of one collection: rows forward, and once backward."""

    def __init__(self, collection: EmbeddingCollection, features: list[FeatureIds]) -> None:
        self._of, self._features = collection, features
        self._local: dict[int, FoundRows] = {}
        self._exchanged: ExchangedRows | None = None

    def rows(self) -> list[Tensor]:
        """Return each slot's rows, float32 [L, D]."""
        tables, sharded = self._of._tables, self._of._sharded
        ids = [np.concatenate([self._features[n].ids_L for n in self._slots_of(t)]) for t in range(len(tables.configs))]
        self._local = {t: find_rows(tables.parts[t], ids[t]) for t in range(len(ids)) if t not in sharded}
        found = dict(self._local)
        if sharded:
            self._exchanged = self._of._exchange.look_up([ids[t] for t in sharded])
            found |= {t: self._exchanged.rows_of(place) for place, t in enumerate(sharded)}
        outs: dict[int, Tensor] = {}
        for table, rows in found.items():
            at = 0
            for n in self._slots_of(table):
                count = len(self._features[n].ids_L)
                outs[n] = torch.empty(count, rows.dim)
                part = rows.rows_L[at : at + count]
                row_kernels.copy_rows(rows.source, part, outs[n], None, threads=torch.get_num_threads())
                at += count
        return [outs[n] for n in range(len(outs))]

    def apply_gradients(self, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Update rows, or return the gradient of each parameter."""
        tables = self._of._tables
        by_table = [self._joined(table, grads) for table in range(len(tables.configs))]
        for table, grads_LD in enumerate(by_table):
            if not bool(torch.isfinite(grads_LD.sum())):
                tables.raise_for_gradients(table, grads_LD)
        if self._exchanged is not None:
            self._exchanged.apply_gradients([by_table[table] for table in self._of._sharded])
        of_weights: list[Tensor | None] = []
        for table, found in self._local.items():
            every_row = Summands(by_table[table], found.dim, np.arange(len(by_table[table])))
            if tables.params is None:
                of_weights.append(tables.gradient(table, found, every_row))
            else:
                tables.update_local(table, found, every_row)
        return of_weights or [None]

    def _slots_of(self, table: int) -> list[int]:
        return [n for n, slot in enumerate(self._of._slots) if slot.table == table]

    def _joined(self, table: int, grads: tuple[Tensor | None, ...]) -> Tensor:
        """Return a table's gradients, one row a position; an output that was not used has none."""
        parts = []
        for n in self._slots_of(table):
            shape = len(self._features[n].ids_L), self._of._slots[n].dim
            grad = grads[n]
            parts.append(torch.zeros(shape) if grad is None else grad)
        return torch.cat(parts).contiguous()


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lookup: _RowLookup, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.lookup = lookup
        return tuple(lookup.rows())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.lookup.apply_gradients(grads)
