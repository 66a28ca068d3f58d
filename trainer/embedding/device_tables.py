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
        self.clear()

    def export_rows(self) -> TableRows:
        return TableRows(
            ids=torch.arange(len(self.weight)),
            weights=self.weight.detach().cpu(),
            states={name: state.cpu() for name, state in self.state_rows.items()},
        )

    def owned(self, ids: Tensor) -> Tensor:
        return (ids >= 0) & (ids < len(self.weight))

    def clear(self) -> None:
        """Give every row its initial value: a checkpoint need not have rows that were never updated."""
        fill_initial_rows(self._init, self.weight.detach(), 0)
        for state in self.state_rows.values():
            state.zero_()

    def import_rows(self, rows: TableRows) -> None:
        at = rows.ids.to(self.weight.device)
        with torch.no_grad():
            self.weight[at] = rows.weights.to(self.weight.device)
        for name, state in rows.states.items():
            self.state_rows[name][at] = state.to(self.weight.device)


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
