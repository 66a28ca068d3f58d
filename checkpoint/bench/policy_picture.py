"""Draw what the adaptive policy decides: `python -m ett.checkpoint.bench.policy_picture OUT.svg`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from ett.checkpoint.bench.access_traces import trace_of
from ett.checkpoint.bench.bench_checkpoint import WORKLOAD, cost_of
from ett.checkpoint.bench.policy_simulation import Account, simulate
from ett.checkpoint.policy.io_cost import period_costs
from ett.checkpoint.policy.period import Population, solve
from ett.checkpoint.policy.save_policy import Adaptive, Incremental, Policy
from ett.checkpoint.svg_plot import PANEL, Plot, panels, text
from ett.errors import UsageError

_COLOURS = {"zipf": "#4269d0", "bursty": "#d1495b", "drifting": "#3ca951"}
_NUM_ROWS = 10_000


def policy_picture(workload: dict[str, Any]) -> str:
    """Return an SVG: total cost over the threshold; hot rows, and rows saved, over a run of each trace."""
    accounts = {kind: _run(workload, kind, Adaptive(workload["simulation"]["max_chain"])) for kind in _COLOURS}
    period = workload["simulation"]["periods"][4]
    saved = _saved_rows(accounts["zipf"], _run(workload, "zipf", Incremental(period - 1)), period)
    return panels([_threshold_curve(workload), _hot_rows(accounts), saved])


def _run(workload: dict[str, Any], kind: str, policy: Policy) -> Account:
    sizes = workload["simulation"]
    trace = trace_of(kind, workload["traces"][kind], num_rows=_NUM_ROWS, num_intervals=sizes["checkpoints"], seed=0)
    return simulate(trace, _NUM_ROWS, policy, cost_of(workload), sizes["id_bytes"] / sizes["record_bytes"])


def _threshold_curve(workload: dict[str, Any]) -> list[str]:
    """Cost of all rows of the zipf trace, by the model, over the threshold; the base is the same everywhere."""
    recipe, cost = workload["traces"]["zipf"], cost_of(workload)
    share = 1 / np.arange(1, _NUM_ROWS + 1) ** recipe["exponent"]
    p = -np.expm1(-share / share.sum() * _NUM_ROWS * recipe["lookups_per_row"])
    best = solve(cost, Population(p, np.ones(_NUM_ROWS)), longest=64)
    cold, hot = period_costs(cost, p, best.period)
    thetas = np.linspace(0, 1, 201)
    totals = np.array([cold[p <= theta].sum() + hot[p > theta].sum() for theta in thetas])
    relative = totals / totals.min()
    plot = Plot(
        top=40,
        title=f"Cost of changed rows over the threshold, K = {best.period} (1: the least; zipf, by the model)",
        x_label="rows that are updated in an interval with a higher probability than this are hot",
        x_top=1.0,
        y_top=1.6,
        y_unit="",
    )
    x, y = plot.at(best.threshold, 1.0)
    marks = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#d1495b"/>']
    marks.append(text(x - 4, y + 22, f"p* = {best.threshold:.3f}", 'text-anchor="middle"'))
    ends = [
        text(*plot.at(0.02, relative[0] + 0.08), "all hot"),
        text(*plot.at(0.94, relative[-1] + 0.08), "all cold"),
    ]
    return [*plot.frame(), plot.line(thetas.tolist(), relative.tolist(), "#333"), *marks, *ends]


def _hot_rows(accounts: dict[str, Account]) -> list[str]:
    shares = {kind: [100 * hot / _NUM_ROWS for hot in account.hot] for kind, account in accounts.items()}
    plot = Plot(
        top=PANEL + 40,
        title="Rows in the hot files under adaptive, % of all",
        x_label="checkpoint",
        x_top=len(next(iter(shares.values()))),
        y_top=20,
        y_unit=" %",
    )
    parts = plot.frame()
    for number, (kind, share) in enumerate(shares.items()):
        parts += [
            plot.line(range(1, len(share) + 1), share, _COLOURS[kind]),
            *plot.named(kind, _COLOURS[kind], 430 + 100 * number),
        ]
    return parts


def _saved_rows(adaptive: Account, incremental: Account, period: int) -> list[str]:
    plot = Plot(
        top=2 * PANEL + 40,
        title="Rows that a checkpoint writes, % of all (zipf)",
        x_label="checkpoint",
        x_top=len(adaptive.hot),
        y_top=100,
        y_unit=" %",
    )
    parts = plot.frame()
    named = (f"incremental, a base every {period}", incremental, "#bbb"), ("adaptive", adaptive, _COLOURS["zipf"])
    for number, (name, account, colour) in enumerate(named):
        saved = zip(account.base, account.hot, account.cold, strict=True)
        shares = [100 * sum(kinds) / _NUM_ROWS for kinds in saved]
        parts += [plot.line(range(1, len(shares) + 1), shares, colour), *plot.named(name, colour, 420 + 210 * number)]
    return parts


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise UsageError("one argument is needed", expected="the file to draw to")
    Path(arguments[0]).write_text(policy_picture(tomllib.loads(WORKLOAD.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
