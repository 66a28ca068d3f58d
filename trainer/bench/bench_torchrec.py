"""Figures beside TorchRec: two ranks on this host that train one model with our tables and with TorchRec's, in turn."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from ett.figures import Measured
from ett.trainer.bench.bench_ranks import run_ranks
from ett.versions import version_of

_RANK, _NUM_RANKS = "ett.trainer.bench.torchrec_rank", 2
_PACKAGES = ("torchrec", "fbgemm-gpu-cpu")
_FIGURES = {"tablewise": "vs_torchrec_tablewise", "rowwise_ec": "vs_torchrec_rowwise_ec"}


def torchrec_figures(workload: dict[str, Any], quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return both figures, and what they are made of.

    A sample is TorchRec's seconds of a block of steps over ours, of a pair that ran one after the other in the same two
    processes. Raises: ThresholdMissed: the losses differ, so that no time means anything.
    """
    missing = [package for package in _PACKAGES if version_of(package) is None]
    if missing:
        reason = f"{' and '.join(missing)} not installed: make peers"
        return [Measured(name=name, unit="x", reason=reason) for name in _FIGURES.values()], {}
    figures, detail = [], {}
    for table, name in _FIGURES.items():
        pairs = dict(workload["pairs"])
        quick_pairs = pairs.pop("quick_pairs")
        settings = {"model": workload[table], "pairs": pairs | ({"pairs": quick_pairs} if quick else {})}
        what = f"the comparison with TorchRec ({table})"
        told = run_ranks(_RANK, [table, json.dumps(settings)], _NUM_RANKS, what=what)
        ratios = [theirs[0] / ours[0] for ours, theirs in zip(told["ours"], told["theirs"], strict=True)]
        figures.append(Measured(name=name, unit="x", samples=ratios))
        samples = workload[table]["batch"] * _NUM_RANKS
        detail[name] = {
            "worst_loss_difference": told["worst_loss_difference"],
            **{f"{who}_samples_per_s": samples / median(wall for wall, _ in told[who]) for who in ("ours", "theirs")},
            **{f"{who}_cpu_ms_a_step": 1000 * median(cpu for _, cpu in told[who]) for who in ("ours", "theirs")},
        }
    versions = {package: version_of(package) for package in _PACKAGES}
    return figures, {"torchrec": detail | {"versions": versions}}
