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

from collections.abc import Sequence, Set
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
        self, model: nn.Module, optimizers: Sequence[object], *, taken: Set[str], is_tracked: bool, is_copy: bool
    ) -> None:
        """Find them.

        Args:
            taken: names that other tables have.
            is_tracked: whether the policy writes a part of a table.
            is_copy: whether another rank saves them.
        """
        modules = {name: module for name, module in _modules(model).items() if name not in taken}
        self._all = {
            name: TorchTable(name, module, _only_holder(optimizers, module.weight), is_copy=is_copy)
            for name, module in modules.items()
        }
        self._saved = [name for name, table in self._all.items() if _is_worth_it(model, table)] if is_tracked else []
        self._weight_names = {name: _weight_name(model, name) for name in self._all}
        self.present: dict[str, TorchTable] = {}
        self.settle()

    def settle(self) -> None:
        """Go on with the tables that a save has."""
        self.present = {name: self._all[name] for name in self._saved}
        for table in self.present.values():
            table.settle()

    def expect(self, saved: dict[str, TableSpec], *, is_whole: bool = True) -> None:
        """Go on with those of a commit's tables that are embeddings of this model, until the next `settle`.

        Args: is_whole: see `TorchTable.expect`.
        """
        self.present = {name: table for name, table in self._all.items() if name in saved}
        for name, table in self.present.items():
            table.expect(saved[name], is_whole=is_whole)

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
            entry = found.get(self._weight_names[name], {})
            empty = {state: rows.detach()[:0] for state, rows in table.state_rows().items() if entry.get(state) is rows}
            if empty:
                found[self._weight_names[name]] = {**entry, **empty}
        return found

    def put_rows(self, optimizers: Sequence[dict[str, Any]]) -> None:
        """Put the states that were imported into decoded trees of optimizers, where `without_rows` has made room."""
        for name, table in self.present.items():
            imported = table.take_imported()
            if imported:
                states = (tree["state"].get(self._weight_names[name], {}) for tree in optimizers if "state" in tree)
                (entry,) = [entry for entry in states if entry.keys() >= imported.keys()]
                entry |= {state: rows.view(len(rows), *entry[state].shape[1:]) for state, rows in imported.items()}


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


def _only_holder(optimizers: Sequence[object], weight: Tensor) -> Optimizer | None:
    """Return the optimizer of torch that has a weight; None where none or several have it."""
    found = [
        optimizer
        for optimizer in optimizers
        if isinstance(optimizer, Optimizer)
        and any(parameter is weight for group in optimizer.param_groups for parameter in group["params"])
    ]
    return found[0] if len(found) == 1 else None


def _is_worth_it(model: nn.Module, table: TorchTable) -> bool:
    return (
        table.weight.requires_grad
        and table.optimizer is not None
        and table.module.max_norm is None
        and table.weight.nbytes >= SMALLEST_TABLE_BYTES
        and not _is_shared(model, table.weight)
    )


def _is_shared(model: nn.Module, weight: Tensor) -> bool:
    """Return whether a weight's memory is part of something larger, or has another name in the model."""
    memory = weight.untyped_storage()
    others = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    num_names = sum(_memory(value) == memory.data_ptr() for _, value in others)
    return num_names != 1 or memory.nbytes() != weight.nbytes


def _memory(value: Tensor) -> int:
    is_plain = type(value) in (Tensor, nn.Parameter)
    return value.untyped_storage().data_ptr() if is_plain and value.layout is torch.strided else 0
