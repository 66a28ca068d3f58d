"""Figures beside TorchRec: two ranks on this host that train one model with our tables and with TorchRec's, in turn."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.versions import version_of

_NUM_RANKS = 2
_LONGEST_S = 900.0  # a run of either comparison; it takes about one minute
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
        told = _run_ranks(table, {"model": workload[table], "pairs": pairs | ({"pairs": quick_pairs} if quick else {})})
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


def _run_ranks(table: str, settings: dict[str, Any]) -> dict[str, Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(_NUM_RANKS)}
    environ = os.environ | address | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ett.trainer.bench.torchrec_rank", table, json.dumps(settings)]
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as folder:
        outputs = [Path(folder, f"{rank}.txt") for rank in range(_NUM_RANKS)]
        ranks = []
        for rank, output in enumerate(outputs):
            with output.open("w") as file:
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(subprocess.Popen(command, env=environ | own, stdout=file, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(timeout=_LONGEST_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        told = [output.read_text().splitlines() for output in outputs]
    if any(codes):
        last = next(lines[-1:] for lines, code in zip(told, codes, strict=True) if code)
        raise ThresholdMissed(
            f"the comparison with TorchRec ({table}) ended with {codes}: {' '.join(last)}",
            expected="0, after equal losses",
        )
    result: dict[str, Any] = json.loads(next(line for line in reversed(told[0]) if line.startswith("{")))
    return result
