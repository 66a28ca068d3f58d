"""Training with a part of the rows in device memory, beside training with all of them there."""

from __future__ import annotations

import statistics
import tomllib
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ett.errors import ThresholdMissed
from ett.figures import FIGURES, Measured
from ett.trainer.bench.device_model import DEVICE, WORKLOAD, Batch, Ours, device_s, make_batches, without_graphs
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.embedding.fused_optimizer import EmbOptimType
from ett.trainer.jagged import KeyedJaggedTensor

_HALF_DENSE = FIGURES.parent / "workloads" / "core-device-half-dense.toml"
_LINK_BYTES = 1 << 28


def cache_figures(quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return the figure of the cache, and what it was made of.

    Raises: ThresholdMissed: a cache changes what is trained, so no time means anything.
    """
    workload = tomllib.loads(WORKLOAD.read_text())
    torch.set_float32_matmul_precision("high")
    _check_bits(workload)
    figure, detail = _cache_figure(workload, quick=quick)
    if not quick:
        half = workload | {"dense": tomllib.loads(_HALF_DENSE.read_text())["dense"]}
        for name, other in (("half_dense", half), ("without_graphs", without_graphs(workload))):
            ratio, of_other = _cache_figure(other, quick=quick)
            detail |= {f"{name}_{key}": value for key, value in of_other.items()}
            detail[f"{name}_cache10_vs_all_hbm"] = round(statistics.median(ratio.samples), 3)
    return [figure], detail


class Cached(Ours):
    """Rows in host memory; those of the next batches are fetched while one trains."""

    def __init__(self, workload: dict[str, Any], optimizer: EmbOptimType) -> None:
        super().__init__(workload, optimizer, CacheParams(load_factor=workload["cache"]["load_factor"]))
        self._depth = workload["cache"]["depth"]
        self._ahead: deque[KeyedJaggedTensor] = deque()

    def train(self, batches: list[Batch], steps: int, *, is_waited_for: bool = True) -> None:
        for step in range(steps):
            for later in batches[step + self._depth : step + self._depth + 1] if step else batches[: self._depth + 1]:
                self._ahead.append(self.features(later[0]))
                self.tables.prefetch(self._ahead[-1])
            self.train_one(batches[step])
        if is_waited_for:
            self.end()

    def pooled(self, ids_L: Tensor) -> Tensor:
        values: Tensor = self.tables(self._ahead.popleft()).values()
        return values.view(-1, self.count, self.dim)

    def use(self) -> tuple[int, int]:
        """Return how many distinct rows were looked up, and how many of them were not there."""
        uses = [block.cache.weights.use() for block in self.tables.blocks if block.cache is not None]
        return sum(use.looked_up for use in uses), sum(use.missed for use in uses)


def _cache_figure(workload: dict[str, Any], *, quick: bool) -> tuple[Measured, dict[str, Any]]:
    """Samples/s of whole training steps, both in turn, on batches of which none comes twice."""
    optimizer, sizes = EmbOptimType(workload["tables"]["optimizer"]), workload["cache"]
    rounds, steps, batch_size = 3 if quick else sizes["rounds"], sizes["steps"], workload["train"]["batch_size"]
    num_batches = sizes["warm_batches"] + rounds * steps
    batches = make_batches(workload | {"train": workload["train"] | {"batches": num_batches}})
    cached, full = Cached(workload, optimizer), Ours(workload, optimizer)
    batches = full.laid_out(batches)
    warm, batches = batches[: sizes["warm_batches"]], batches[sizes["warm_batches"] :]
    cached.train(warm, len(warm))
    full.train(warm, steps)
    dense_s = device_s(lambda: _train_dense(full, warm[:steps])) / steps
    times: dict[str, list[float]] = {"cached": [], "full": []}
    hit_rates, before = [], cached.use()
    looked_up = missed = 0
    for number in range(rounds):
        part = batches[number * steps : (number + 1) * steps]
        times["cached"].append(device_s(lambda part=part: cached.train(part, steps)) / steps)  # type: ignore[misc]
        times["full"].append(device_s(lambda part=part: full.train(part, steps)) / steps)  # type: ignore[misc]
        looked_up, missed = (now - then for now, then in zip(cached.use(), before, strict=True))
        before = cached.use()
        hit_rates.append(1 - missed / looked_up)
    link = _link_bytes_per_s()
    row_bytes = 4 * workload["tables"]["dim"]
    detail = {
        "cache_step_ms": _ms(times["cached"]),
        "cache_all_hbm_step_ms": _ms(times["full"]),
        "cache_dense_only_step_ms": _ms([dense_s]),
        "cache_samples_per_s": round(batch_size / statistics.median(times["cached"])),
        "cache_distinct_rows_per_step": round(looked_up / steps),
        "cache_hit_rate_of_distinct_rows": [round(rate, 4) for rate in hit_rates],
        "cache_link_mb_per_step_each_way": round(missed / steps * row_bytes / 1e6, 2),
        "cache_link_gb_per_s": {way: round(rate / 1e9, 1) for way, rate in link.items()},
        "cache_link_bound_ms_per_step": round(missed / steps * row_bytes / link["to_device"] * 1e3, 3),
    }
    ratios = [full_s / cached_s for full_s, cached_s in zip(times["full"], times["cached"], strict=True)]
    return Measured(name="cache10_vs_all_hbm", unit="x", samples=ratios), detail


def _train_dense(side: Ours, batches: list[Batch]) -> None:
    for _, dense, labels in batches:
        pooled = torch.zeros(len(labels), side.count, side.dim, device=DEVICE, requires_grad=True)
        loss = binary_cross_entropy_with_logits(side.dense(dense, pooled), labels)
        side.zero_grad()
        torch.autograd.backward(loss)
        side.step()


def _check_bits(workload: dict[str, Any]) -> None:
    """Some steps on small tables, a cache of a few rows more than two batches have, and the same bits."""
    small = workload | {
        "tables": workload["tables"] | {"rows": 260_000},
        "train": workload["train"] | {"batch_size": 512, "batches": 12},
    }
    optimizer = EmbOptimType(workload["tables"]["optimizer"])
    cached, full = Cached(small, optimizer), Ours(small, optimizer)
    batches = full.laid_out(make_batches(small))
    for side in (cached, full):
        side.train(batches, len(batches))
    found, expected = cached.tables.state_dict(), full.tables.state_dict()
    if not all(torch.equal(found[name], rows.cpu()) for name, rows in expected.items()):
        raise ThresholdMissed("a table that was trained through a cache differs from one that was not")
    if not cached.use()[1] > len(cached.tables.blocks[0].weights):
        raise ThresholdMissed("no row left the cache in the comparison")


def _link_bytes_per_s() -> dict[str, float]:
    here, there = (
        torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True),
        torch.empty(_LINK_BYTES, dtype=torch.uint8, device=DEVICE),
    )
    down = min(device_s(lambda: there.copy_(here, non_blocking=True)) for _ in range(5))
    up = min(device_s(lambda: here.copy_(there, non_blocking=True)) for _ in range(5))
    return {"to_device": _LINK_BYTES / down, "to_host": _LINK_BYTES / up}


def _ms(times_s: list[float]) -> float:
    return round(statistics.median(times_s) * 1e3, 3)
