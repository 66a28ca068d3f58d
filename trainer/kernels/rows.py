"""The row kernels, chosen by where the table lies: Triton on CUDA, torch elsewhere.

Shapes: R rows of a table, D elements of a row, N rows of a list, L positions (lookups), B bags.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ett.trainer.kernels import reference
from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.segments import RowGradients
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import RowOptimizer, States

_ROWS_AT_ONCE = 1 << 16  # bounds the memory beside the table's own


def gather_rows(table_RD: Tensor, slots_N: Tensor) -> Tensor:
    """Return float32 [N, D]: the rows of slots_N, int64 in [0, R)."""
    out = table_RD.new_empty((len(slots_N), table_RD.shape[1]))
    if table_RD.is_cuda:
        _triton("rows").gather_rows(table_RD, slots_N, out)
        return out
    return torch.index_select(table_RD, 0, slots_N, out=out)


def scatter_rows(table_RD: Tensor, slots_N: Tensor, rows_ND: Tensor) -> None:
    """Write rows_ND to the distinct slots_N."""
    (_triton("rows") if table_RD.is_cuda else reference).scatter_rows(table_RD, slots_N, rows_ND)


def pool_rows(
    table_RD: Tensor, slots_L: Tensor, offsets: Tensor, scale_L: Tensor | None = None, *, batch_size: int
) -> Tensor:
    """Return float32 [B, D]: the sum of each bag's rows, each times its scale; an empty bag gives zeros.

    Args:
        offsets: int64 [B + 1], non-decreasing, from 0 to L: the bags of one feature after those of another.
        scale_L: float32, such as per-sample weights.
        batch_size: bags of a feature. Those of an example are returned beside each other.
    """
    pooled: Tensor = (_triton("rows") if table_RD.is_cuda else reference).pool_rows(
        table_RD, slots_L, offsets, scale_L, batch_size
    )
    return pooled


def locate_rows(ids_L: Tensor, offsets: Tensor, of: FeatureRows, report: Tensor) -> tuple[Tensor, Tensor]:
    """Return the slot of each id, `of.slot_type()` [L], and the row of its bag in pooled bags, int64 [L].

    Args:
        ids_L: int64. One out of range gets slot 0.
        offsets: int64 [F * B + 1]: bag f * B + b is example b of feature f; its row is b * F + f.
        report: int64 [2]: the number of wrong ids is added to the first, the second is raised to L - the first one's
            position.
    """
    found: tuple[Tensor, Tensor] = (_triton("batch") if ids_L.is_cuda else reference).locate_rows(
        ids_L, offsets, of, report
    )
    return found


def count_not_finite(values: Tensor, report: Tensor) -> None:
    """Add to report, int64 [1], how many elements of values (contiguous) are not finite."""
    (_triton("batch") if values.is_cuda else reference).count_not_finite(values, report)


def fill_initial_rows(init: RowInit, out_ND: Tensor, first_id: int, by: torch.device | None = None) -> None:
    """Write the initial rows of ids first_id, first_id + 1, ...: the same bits on every device.

    Args: by: the device that computes them, if it is not the one where they are; it must reach them.
    """
    device = out_ND.device if by is None else by
    if device.type == "cuda":
        key = int(init.key.astype(np.int64))
        with torch.cuda.device(device):
            _triton("rows").fill_initial_rows(out_ND, key, first_id, float(init.scale), float(init.middle))
        return
    for begin in range(0, len(out_ND), _ROWS_AT_ONCE):
        end = min(begin + _ROWS_AT_ONCE, len(out_ND))
        out_ND[begin:end] = torch.from_numpy(init.rows(np.arange(first_id + begin, first_id + end)))


def apply_gradients(
    optimizer: RowOptimizer, weights_RD: Tensor, states: States, gradients: RowGradients, learning_rate: float
) -> None:
    """Step every row that was looked up, once, in place, with its gradients summed: chunks of 32 positions, in order.

    Args:
        states: as `optimizer.states(D)` names them, [R, width].
    """
    (_triton("update") if weights_RD.is_cuda else reference).apply_gradients(
        optimizer, weights_RD, states, gradients, learning_rate
    )


def _triton(name: str) -> ModuleType:
    return import_module(f"ett.trainer.kernels.triton_{name}")
