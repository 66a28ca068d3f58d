"""Which rows are updated in each interval between checkpoints, drawn from the recipes of a workload file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Trace = list[Slots]  # for each interval the slots of updated rows, ascending
Mask = NDArray[np.bool_]


def trace_of(kind: str, recipe: dict[str, Any], *, num_rows: int, num_intervals: int, seed: int) -> Trace:
    """Return a trace of one of KINDS; its recipe is that table of the workload file."""
    draws = KINDS[kind](recipe, num_rows, np.random.default_rng(seed))
    return [np.flatnonzero(next(draws)) for _ in range(num_intervals)]


def _zipf(recipe: dict[str, Any], num_rows: int, rng: np.random.Generator) -> Iterator[Mask]:
    """Rows have popularities by Zipf's law, which stay; ids say nothing of them."""
    p = rng.permutation(_zipf_odds(recipe, num_rows))
    while True:
        yield rng.random(num_rows) < p


def _drifting(recipe: dict[str, Any], num_rows: int, rng: np.random.Generator) -> Iterator[Mask]:
    """As zipf, and a share of the rows changes places in each interval."""
    p, num_moved = rng.permutation(_zipf_odds(recipe, num_rows)), int(recipe["moved"] * num_rows)
    while True:
        yield rng.random(num_rows) < p
        moved = rng.choice(num_rows, num_moved, replace=False)
        p[moved] = p[rng.permutation(moved)]


def _bursty(recipe: dict[str, Any], num_rows: int, rng: np.random.Generator) -> Iterator[Mask]:
    """Rows are busy for a geometrically distributed number of intervals, and then quiet."""
    ends = 1 / recipe["burst_intervals"]
    begins = ends * recipe["busy"] / (1 - recipe["busy"])
    is_busy = rng.random(num_rows) < recipe["busy"]
    while True:
        yield rng.random(num_rows) < np.where(is_busy, recipe["p_busy"], recipe["p_quiet"])
        changes = rng.random(num_rows)
        is_busy = np.where(is_busy, changes >= ends, changes < begins)


def _uniform(recipe: dict[str, Any], num_rows: int, rng: np.random.Generator) -> Iterator[Mask]:
    while True:
        yield rng.random(num_rows) < recipe["p"]


def _zipf_odds(recipe: dict[str, Any], num_rows: int) -> NDArray[np.float64]:
    """Return how likely each row is updated in an interval: lookups are Poisson."""
    share = 1 / np.arange(1, num_rows + 1) ** recipe["exponent"]
    odds: NDArray[np.float64] = -np.expm1(-share / share.sum() * num_rows * recipe["lookups_per_row"])
    return odds


KINDS: dict[str, Callable[[dict[str, Any], int, np.random.Generator], Iterator[Mask]]] = {
    "zipf": _zipf,
    "bursty": _bursty,
    "drifting": _drifting,
    "uniform": _uniform,
}
