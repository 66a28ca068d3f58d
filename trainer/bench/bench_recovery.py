"""`ett bench recovery`: how fast a job is back, part by part; each part checks first that what came back is right."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ett.bench import BenchResult
from ett.figures import FIGURES, Measured, load_targets
from ett.recovery.bench.restore_figures import restore_figures
from ett.trainer.bench.partial_restore import partial_figures
from ett.trainer.bench.recovery_campaign import campaign_figures
from ett.trainer.bench.startup_modes import startup_figures

WORKLOAD = FIGURES.parent / "workloads" / "recovery.toml"
_TABLE = "recovery"
_NOT_SHOWN = "no part of the benchmark shows it yet"
Say = Callable[[str], None]
Part = Callable[[dict[str, Any], bool, Say], tuple[Sequence[Measured], dict[str, Any]]]
# Each takes the workload, `quick`, and what tells a person how far it is; it returns its figures and its detail.
PARTS: tuple[Part, ...] = (restore_figures, partial_figures, startup_figures, campaign_figures)


def run(quick: bool, path: Path = WORKLOAD, parts: Sequence[Part] = PARTS) -> BenchResult:
    """Measure the table [recovery] of figures.toml, on the disk of the current folder.

    Raises: ThresholdMissed: something came back other than it was.
    """
    workload = tomllib.loads(path.read_text())
    figures: list[Measured] = []
    detail: dict[str, Any] = {}
    for part in parts:
        found, facts = part(workload, quick, _say)
        figures += found
        detail |= facts
    shown = {figure.name for figure in figures}
    missing = [name for name in load_targets(_TABLE, quick=quick) if name not in shown]
    figures += [Measured(name=name, unit="", reason=_NOT_SHOWN) for name in missing]
    return BenchResult(figures=figures, detail=detail)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
