"""What it costs to know what changed: on the path of a step, at a trigger, and beside training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ett.checkpoint.policy.access_counter import AccessCounter
from ett.checkpoint.policy.io_cost import IoCost
from ett.checkpoint.policy.period import solve
from ett.checkpoint.policy.table_tracker import TableTracker


def tracking_cost(workload: dict[str, int]) -> dict[str, Any]:
    """Return medians: marking a batch's rows, freezing, listing and ageing, and solving, for one table."""
    num_rows, num_ids = workload["rows"], workload["batch"] * workload["features"]
    rng, counter = np.random.default_rng(0), AccessCounter()
    tracker = TableTracker(counter)
    tracker.grow(num_rows)
    tracker.restored(num_rows, np.empty(0, np.int64))
    times: dict[str, list[float]] = {"mark_s": [], "freeze_s": [], "changes_s": [], "solve_s": []}
    cost, num_marked = IoCost(saved_s=6.0, restorable_s=1.0), 0
    for _ in range(workload["repeats"]):
        slots = np.unique(rng.integers(0, num_rows, num_ids))
        num_marked = len(slots)
        rng.shuffle(slots)
        times["mark_s"].append(_seconds(partial(tracker.updated, slots, slots)))
        times["freeze_s"].append(_seconds(tracker.freeze))
        times["changes_s"].append(_seconds(partial(tracker.changes, np.asarray)))
        tracker.committed(slots[: num_marked // 10])
        times["solve_s"].append(_seconds(partial(solve, cost, counter.population(), longest=64)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "rows": num_rows,
        "ids_of_a_batch": num_marked,
        "mark_ns_an_id": round(medians["mark_s"] / num_marked * 1e9, 2),
        **{f"{name[:-2]}_ms": round(1e3 * value, 3) for name, value in medians.items()},
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
