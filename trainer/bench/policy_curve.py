"""Draw what checkpoints cost: `python -m ett.trainer.bench.policy_curve RESULTS.json OUT.svg`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ett.checkpoint.svg_plot import PANEL, Plot, panels, text
from ett.errors import UsageError

_COLOURS = {
    "dcp_sync": "#9aa0a6",
    "dcp_async": "#3c4043",
    "full": "#d1495b",
    "check_n_run": "#e08f2c",
    "incremental": "#3ca951",
    "adaptive_sync": "#8fb0ee",
    "adaptive": "#1f4fd1",
}
_TOPS = (5, 10, 20, 40, 60, 80, 100)


def policy_curve(live: dict[str, Any]) -> str:
    """Return an SVG: throughput lost and median stall over the interval. Args: live: `detail.live` of the results."""
    intervals = sorted(map(int, live["intervals"]))
    of = live["intervals"]
    losses = {name: [of[str(every)][name]["lost_pct"] for every in intervals] for name in of[str(intervals[0])]}
    stalls = {
        name: [of[str(every)][name]["stall_ms"]["p50"] / of[str(every)][name]["none_step_ms"] for every in intervals]
        for name in losses
    }
    most_lost = max(max(values) for values in losses.values())
    top = next((top for top in _TOPS if top >= most_lost), 100)
    lost = _panel(40, "Throughput lost to checkpoints", intervals, losses, (float(top), " %"))
    most = max(max(values) for values in stalls.values())
    stalled = _panel(PANEL + 40, "Median stall of a checkpoint, in steps", intervals, stalls, (_round_up(most), ""))
    return panels([[*lost, *_legend(list(losses), 2 * PANEL + 20)], stalled])


def _panel(
    top: int, title: str, intervals: Sequence[int], values: dict[str, list[float]], scale: tuple[float, str]
) -> list[str]:
    """Return a line a policy; intervals stand as far from each other as their logarithms."""
    y_top, unit = scale
    xs = [0.06 + 0.88 * share for share in _shares(intervals)]
    label = "batches between two checkpoints"
    plot = Plot(top=top, title=title, x_label=label, x_top=1.0, y_top=y_top, y_unit=unit, x_ticks=_ticks(xs, intervals))
    parts = plot.frame()
    for name, heights in values.items():
        shown = [min(max(height, 0.0), y_top) for height in heights]
        parts.append(plot.line(xs, shown, _COLOURS[name]))
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_COLOURS[name]}"/>'
            for x, y in (plot.at(*point) for point in zip(xs, shown, strict=True))
        ]
    return parts


def _shares(intervals: Sequence[int]) -> list[float]:
    least, most = math.log(intervals[0]), math.log(intervals[-1])
    return [(math.log(every) - least) / (most - least) if most > least else 0.5 for every in intervals]


def _ticks(xs: Sequence[float], intervals: Sequence[int]) -> dict[float, str]:
    return {x: str(every) for x, every in zip(xs, intervals, strict=True)}


def _round_up(most: float) -> float:
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= most)


def _legend(names: Sequence[str], y: int) -> list[str]:
    parts, x = [], 24
    for name in names:
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{_COLOURS[name]}"/>')
        parts.append(text(x + 14, y, name))
        x += 40 + 7 * len(name)
    return parts


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise UsageError(
            "two arguments are needed", expected="the results of `ett bench checkpoint --json`; the picture"
        )
    detail = json.loads(Path(arguments[0]).read_text())["data"]["detail"]
    if "live" not in detail:
        raise UsageError(f"{arguments[0]} has no policies that were trained", do="run `ett bench checkpoint --json`")
    Path(arguments[1]).write_text(policy_curve(detail["live"]))


if __name__ == "__main__":
    main(sys.argv[1:])
