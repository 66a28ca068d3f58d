"""Tables whose rows and optimizer state lie in device memory, in full: one block of rows for all that are alike.

Tables of one width and one optimizer share a block, so that a batch is one kernel for all of them; each table's
parameter is a view of its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ett.checkpoint.table import StateSpec, TableRows
from ett.errors import ConfigError
from ett.trainer.embedding.dense_rows import ROWS_AT_ONCE, gather_range, scatter_range
from ett.trainer.embedding.fused_optimizer import FusedParams
from ett.trainer.embedding.table_config import EmbeddingConfig
from ett.trainer.kernels.rows import fill_initial_rows
from ett.trainer.sparse.hashing import RowInit


class DeviceTable(nn.Module):
    """One table; implements `ett.checkpoint.table.TableShard`. What it exports is in host memory."""

    def __init__(self, name: str, init: RowInit, weight: Tensor, states: Mapping[str, Tensor]) -> None:
        """Fill `weight`, float32 [N, dim], and `states`, name -> [N, width], both views of a block."""
        super().__init__()
        self.name, self.dim, self.weight_dtype = name, weight.shape[1], "float32"
        self.states = tuple(StateSpec(name=n, dtype=str(s.dtype)[6:], width=s.shape[1]) for n, s in states.items())
        self.weight = nn.Parameter(weight)
        self.state_rows = dict(states)
        self._init = init
        fill_initial_rows(init, weight.detach(), 0)
        for state in states.values():
            state.zero_()

    def begin_export(self) -> Tensor:
        self._meet()
        return torch.arange(len(self.weight))

    def gather(self, ids: Tensor, out: TableRows) -> None:
        gather_range(ids, self.weight.detach(), self.state_rows, out)

    def owned(self, ids: Tensor) -> Tensor:
        return (ids >= 0) & (ids < len(self.weight))

    def begin_import(self, num_rows: int) -> None:
        self._meet()
        self._imported = torch.zeros(len(self.weight), dtype=torch.bool)

    def import_rows(self, rows: TableRows) -> None:
        scatter_range(rows.ids, rows, self.weight.detach(), self.state_rows)
        self._imported[rows.ids] = True

    def end_import(self) -> None:
        """Give rows that did not come their initial value: a checkpoint need not have what was never updated."""
        weights = self.weight.detach()
        for first in range(0, len(weights), ROWS_AT_ONCE):
            missing = (~self._imported[first : first + ROWS_AT_ONCE]).nonzero()[:, 0].to(weights.device)
            if not len(missing):
                continue
            initial = torch.empty_like(weights[first : first + ROWS_AT_ONCE])
            fill_initial_rows(self._init, initial, first)
            weights[first + missing] = initial[missing]
            for state in self.state_rows.values():
                state[first + missing] = 0
        del self._imported
        self._meet()

    def _meet(self) -> None:
        """Wait for the device: rows are copied by threads whose streams are not the one that trains."""
        if self.weight.device.type == "cuda":
            torch.cuda.synchronize(self.weight.device)


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of all tables of one width and optimizer."""

    tables: list[int]  # their numbers
    first_rows: list[int]  # of each of them
    params: FusedParams
    weights: Tensor  # float32 [R, dim]
    states: dict[str, Tensor]  # name -> [R, width]


def make_blocks(
    configs: Sequence[EmbeddingConfig], params: Mapping[str, FusedParams], device: torch.device
) -> list[Block]:
    """Allocate the rows of all tables. Raises: ConfigError: a table grows."""
    alike: dict[tuple[int, FusedParams], list[int]] = {}
    for number, config in enumerate(configs):
        if config.is_dynamic:
            raise ConfigError(
                f"table {config.name} grows, and its device is {device}",
                expected="tables of a fixed size in device memory",
                do="set num_embeddings, or leave the table in host memory",
            )
        alike.setdefault((config.embedding_dim, params[config.name]), []).append(number)
    return [_block(configs, numbers, settings, device) for (_, settings), numbers in alike.items()]


def _block(
    configs: Sequence[EmbeddingConfig], numbers: list[int], settings: FusedParams, device: torch.device
) -> Block:
    dim = configs[numbers[0]].embedding_dim
    first_rows, count = [], 0
    for number in numbers:
        first_rows.append(count)
        count += configs[number].num_embeddings
    states = {
        spec.name: torch.empty(count, spec.width, dtype=getattr(torch, spec.dtype), device=device)
        for spec in settings.row_optimizer().states(dim)
    }
    return Block(numbers, first_rows, settings, torch.empty(count, dim, device=device), states)


def device_table(prefix: str, config: EmbeddingConfig, block: Block, first_row: int, *, seed: int) -> DeviceTable:
    """Return a table of a block, with its initial rows."""
    name, part = f"{prefix}.{config.name}", slice(first_row, first_row + config.num_embeddings)
    low, high = config.get_weight_init_min(), config.get_weight_init_max()
    init = RowInit(name, seed=seed, dim=config.embedding_dim, scale=(high - low) / 2, middle=(high + low) / 2)
    return DeviceTable(name, init, block.weights[part], {n: state[part] for n, state in block.states.items()})
