"""`ett bench core`: the sparse/dense training core, beside TorchRec and beside what the machine can do."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ett.bench import BenchResult
from ett.figures import FIGURES
from ett.trainer.bench.bench_cache import cache_figures
from ett.trainer.bench.bench_cost import cost_detail
from ett.trainer.bench.bench_data import data_figures
from ett.trainer.bench.bench_device import device_figures
from ett.trainer.bench.bench_exactness import exactness_figure
from ett.trainer.bench.bench_index import index_figures
from ett.trainer.bench.bench_torchrec import torchrec_figures

_WORKLOAD = FIGURES.parent / "workloads" / "core.toml"


def run(quick: bool, path: Path = _WORKLOAD) -> BenchResult:
    """Measure the table [core] of figures.toml; each part compares with its reference first."""
    workload = tomllib.loads(path.read_text())
    beside_torchrec, detail = torchrec_figures(workload, quick)
    on_device, device_detail = device_figures(quick)
    of_cache, cache_detail = cache_figures(quick)
    mismatches, exactness = exactness_figure(workload["exactness"], quick)
    figures = [
        *on_device,
        *of_cache,
        *beside_torchrec,
        *index_figures(workload["index"], quick),
        mismatches,
        *data_figures(quick),
    ]
    cost = cost_detail(workload["cost"], quick)
    return BenchResult(figures=figures, detail=detail | device_detail | cache_detail | exactness | cost)
