"""Which embeddings of a model, with plain torch parameters, are tables of a checkpoint and not of its dense state.

A save makes a table of an nn.Embedding or nn.EmbeddingBag (those in TorchRec's collections are such) if it gains by it
and nothing can be missed:

- the policy is one that writes a part of a table;
- the weight is of 1 MiB or more, and is trained by the torch optimizer that the Checkpointer has;
- nothing else shares its memory: tied weights change under another name;
- it has no `max_norm`: a lookup would change rows, and nobody would say so before.

The others are dense. A restore follows the commit: what it has as a table is read as one, whatever the policy is now,
and the rest as dense; so a job may change its policy.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ett.checkpoint.table_segments import TableSpec
from ett.checkpoint.torch_table import Embeddings, TorchTable, is_rows

_ROOT = "embedding"  # the table's name where the model is nothing but an nn.Embedding
SMALLEST_TABLE_BYTES = 1 << 20  # less is written faster than it is kept account of


class TorchTables:
    """The embeddings of a model that can be tables, and those that are at present."""

    def __init__(
        self, model: nn.Module, optimizer: object, *, taken: Set[str], is_tracked: bool, is_copy: bool
    ) -> None:
        """Find them.

        Args:
            taken: names that other tables have.
            is_tracked: whether the policy writes a part of a table.
            is_copy: whether another rank saves them.
        """
        torch_optimizer = optimizer if isinstance(optimizer, Optimizer) else None
        self._all = {
            name: TorchTable(name, module, torch_optimizer, is_copy=is_copy)
            for name, module in _modules(model).items()
            if name not in taken
        }
        self._saved = _worth_it(model, self._all, torch_optimizer) if is_tracked else []
        self._weight_names = {name: _weight_name(model, name) for name in self._all}
        self.present: dict[str, TorchTable] = {}
        self.settle()

    def settle(self) -> None:
        """Go on with the tables that a save has."""
        self.present = {name: self._all[name] for name in self._saved}
        for table in self.present.values():
            table.settle()

    def expect(self, saved: dict[str, TableSpec]) -> None:
        """Go on with those of a commit's tables that are embeddings of this model, until the next `settle`."""
        self.present = {name: table for name, table in self._all.items() if name in saved}
        for name, table in self.present.items():
            table.expect(saved[name])

    def num_rows(self) -> dict[str, int]:
        """Return how many rows each has, of all that can be tables."""
        return {name: len(table.weight) for name, table in self._all.items()}

    @property
    def weight_names(self) -> set[str]:
        """Return the names in the model's state dict that are not dense."""
        return {self._weight_names[name] for name in self.present}

    def without_rows(self, optimizer_state: dict[str, Any]) -> dict[str, Any]:
        """Return an optimizer's state, by the parameters' names, with an empty tensor for each that a table has.

        Its shape, [0, ...], says what that of a row is.
        """
        found = dict(optimizer_state)
        for name, table in self.present.items():
            weight_name = self._weight_names[name]
            if weight_name in found:
                empty = {state: rows.detach()[:0] for state, rows in table.state_rows().items()}
                found[weight_name] = {**found[weight_name], **empty}
        return found

    def put_rows(self, optimizer_state: dict[str, Any]) -> None:
        """Put the states that were imported in the places that `without_rows` has made."""
        for name, table in self.present.items():
            entry = optimizer_state.get(self._weight_names[name])
            for state, rows in table.take_imported().items():
                assert entry is not None, f"table {name} has state {state}, and the optimizer no entry for it"
                entry[state] = rows.view(len(rows), *entry[state].shape[1:])


def _modules(model: nn.Module) -> dict[str, Embeddings]:
    """Return modules whose weight has rows that one can save, and stands in the state dict as it is, by name."""
    found = {
        prefix or _ROOT: module
        for prefix, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    named = {id(value): name for name, value in model.state_dict(keep_vars=True).items()} if found else {}
    return {
        name: module
        for name, module in found.items()
        if type(module._parameters.get("weight")) is nn.Parameter
        and named.get(id(module.weight)) == _weight_name(model, name)
        and module.weight.dim() == 2
        and len(module.weight) > 1
        and module.weight.is_floating_point()
        and is_rows(module.weight)
    }


def _weight_name(model: nn.Module, table: str) -> str:
    return "weight" if isinstance(model, nn.Embedding | nn.EmbeddingBag) else f"{table}.weight"


def _worth_it(model: nn.Module, tables: dict[str, TorchTable], optimizer: Optimizer | None) -> list[str]:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]} if optimizer is not None else set()
    return [
        name
        for name, table in tables.items()
        if table.weight.requires_grad
        and id(table.weight) in trained
        and table.module.max_norm is None
        and table.weight.nbytes >= SMALLEST_TABLE_BYTES
        and not _is_shared(model, table.weight)
    ]


def _is_shared(model: nn.Module, weight: Tensor) -> bool:
    """Return whether a weight's memory is part of something larger, or has another name in the model."""
    memory = weight.untyped_storage()
    others = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    num_names = sum(_memory(value) == memory.data_ptr() for _, value in others)
    return num_names != 1 or memory.nbytes() != weight.nbytes


def _memory(value: Tensor) -> int:
    is_plain = type(value) in (Tensor, nn.Parameter)
    return value.untyped_storage().data_ptr() if is_plain and value.layout is torch.strided else 0
