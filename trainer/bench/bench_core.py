"""`ett bench core`: the sparse/dense training core, beside TorchRec and beside what the machine can do."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import torch

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
    """Measure the table [core] of figures.toml; each part compares with its reference first.

    A machine with a GPU shows the figures that need one, and leaves the others to the kind of machine they are for.
    """
    if torch.cuda.is_available():
        on_device, device_detail = device_figures(quick)
        of_cache, cache_detail = cache_figures(quick)
        return BenchResult(figures=[*on_device, *of_cache], detail=device_detail | cache_detail)
    return _on_the_host(tomllib.loads(path.read_text()), quick)


def _on_the_host(workload: dict[str, Any], quick: bool) -> BenchResult:
    beside_torchrec, detail = torchrec_figures(workload, quick)
    mismatches, exactness = exactness_figure(workload["exactness"], quick)
    index = index_figures(workload["index"], quick)
    figures = [*beside_torchrec, *index, mismatches, *data_figures(quick)]
    return BenchResult(figures=figures, detail=detail | exactness | cost_detail(workload["cost"], quick))
