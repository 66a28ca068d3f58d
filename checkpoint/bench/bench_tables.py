"""Tables to save and restore: rows in the order of their ids, or at random places as in a table that grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows


class BenchTable(nn.Module):
    """Implements `ett.checkpoint.table.TableShard`, for a set of ids that stays."""

    weight_dtype = "float32"
    states = (StateSpec(name="sum", dtype="float32", width=1),)

    def __init__(self, name: str, num_rows: int, dim: int, *, is_scattered: bool, seed: int) -> None:
        super().__init__()
        self.name, self.dim = name, dim
        draw = torch.Generator().manual_seed(seed)
        self.rows = torch.rand(num_rows, dim, generator=draw)
        self.sums = torch.rand(num_rows, 1, generator=draw)
        random = np.random.default_rng(seed)
        self.ids = torch.from_numpy(
            np.cumsum(random.integers(1, 50, num_rows)) if is_scattered else np.arange(num_rows)
        )
        self.places = torch.from_numpy(random.permutation(num_rows)) if is_scattered else None

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes + self.sums.nbytes

    def tensors(self) -> dict[str, Tensor]:
        """Return all that a library of tensors has to save for the same table."""
        where = {} if self.places is None else {"ids": self.ids, "places": self.places}
        return {"rows": self.rows, "sums": self.sums, **where}

    def begin_export(self) -> Tensor:
        return self.ids

    def gather(self, ids: Tensor, out: TableRows) -> None:
        at = self._places_of(ids)
        for column, target in ((self.rows, out.weights), (self.sums, out.states["sum"])):
            if isinstance(at, slice):
                np.copyto(target.numpy(), column[at].numpy())
            else:
                np.take(_whole_rows(column), at.numpy(), out=_whole_rows(target), mode="clip")

    def owned(self, ids: Tensor) -> Tensor:
        return torch.ones(len(ids), dtype=torch.bool)

    def begin_import(self, num_rows: int) -> None:
        """Rows are overwritten as they come."""

    def import_rows(self, rows: TableRows) -> None:
        at = self._places_of(rows.ids)
        where = at if isinstance(at, slice) else at.numpy()
        _whole_rows(self.rows)[where] = _whole_rows(rows.weights)
        _whole_rows(self.sums)[where] = _whole_rows(rows.states["sum"])

    def end_import(self) -> None:
        """All rows came: nobody else has any."""

    def _places_of(self, ids: Tensor) -> slice | Tensor:
        first = int(torch.searchsorted(self.ids, ids[:1])) if len(ids) else 0
        if self.places is None:
            return slice(first, first + len(ids))
        return self.places[first : first + len(ids)]


def _whole_rows(column: Tensor) -> NDArray[np.void]:
    """Return a row as one element: numpy moves it as such, without torch's threads beside those that save."""
    return column.numpy().view(f"V{column.shape[1] * column.element_size()}")[:, 0]


def bench_model(workload: dict[str, Any], num_rows: int) -> nn.Module:
    """Return a model with the tables of store.toml and a dense layer."""
    model = nn.Module()
    kinds = [False] * workload["range"] + [True] * workload["scattered"]
    tables = [
        BenchTable(f"t{number}", num_rows, workload["dim"], is_scattered=is_scattered, seed=number)
        for number, is_scattered in enumerate(kinds)
    ]
    model.tables = nn.ModuleList(tables)
    model.dense = nn.Linear(64, 64)
    return model


def tables_of(model: nn.Module) -> list[BenchTable]:
    return [module for module in model.modules() if isinstance(module, BenchTable)]


def forget(model: nn.Module) -> None:
    """Overwrite every row, so that what a restore did not bring is seen."""
    for table in tables_of(model):
        table.rows.fill_(torch.nan)
        table.sums.fill_(torch.nan)


def has_its_bits(model: nn.Module, workload: dict[str, Any], num_rows: int) -> bool:
    """Return whether a model's rows are those of `bench_model`."""
    expected = bench_model(workload, num_rows)
    return all(
        torch.equal(ours.rows, theirs.rows) and torch.equal(ours.sums, theirs.sums)
        for ours, theirs in zip(tables_of(model), tables_of(expected), strict=True)
    )
