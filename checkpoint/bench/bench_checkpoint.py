"""The simulated part of `ett bench checkpoint`: what policies save and restore over traces, beside hindsight."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ett.checkpoint.bench.access_traces import trace_of
from ett.checkpoint.bench.policy_simulation import Account, hindsight, simulate
from ett.checkpoint.bench.tracking_cost import tracking_cost
from ett.checkpoint.policy.io_cost import IoCost
from ett.checkpoint.policy.save_policy import Adaptive, CheckNRun, Differential, Full, Incremental, Policy
from ett.figures import FIGURES, Measured

WORKLOAD = FIGURES.parent / "workloads" / "checkpoint.toml"


def simulated_figures(workload: dict[str, Any], quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return the io_ figures of the table [checkpoint] of figures.toml, and details of each trace.

    Every simulated chain is read back. Raises: ThresholdMissed: a row was not as trained.
    """
    sizes = workload["simulation"]
    num_seeds = sizes["quick_seeds" if quick else "seeds"]
    results: dict[str, list[_Result]] = {name: [] for name, _, _ in _traces(workload)}
    for seed in range(num_seeds):
        for name, kind, recipe in _traces(workload):
            results[name].append(_compare(workload, kind, recipe, seed, quick))
    figures = [_vs_best_fixed(workload, kind, results) for kind in workload["traces"]]
    figures.append(_vs_hindsight(results))
    traces = {name: _detail(seeds) for name, seeds in results.items()}
    return figures, {"traces": traces, "tracking": tracking_cost(workload["marking"])}


@dataclass(frozen=True, slots=True)
class _Result:
    """Totals of one trace, by policy; in records, restorable ones weighted."""

    totals: dict[str, float]
    largest: dict[str, float]  # save of one checkpoint, over all rows
    hindsight: float
    per_row: float
    period: float  # of adaptive, median

    @property
    def best_fixed(self) -> str:
        return min((name for name in self.totals if name != "adaptive"), key=lambda name: self.totals[name])

    @property
    def vs_best_fixed(self) -> float:
        return self.totals["adaptive"] / self.totals[self.best_fixed]

    @property
    def vs_hindsight(self) -> float:
        return self.totals["adaptive"] / self.hindsight


def _traces(workload: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield name, kind and recipe of each trace; a list of probabilities is a trace each."""
    for kind, recipe in workload["traces"].items():
        if isinstance(recipe.get("p"), list):
            yield from ((f"{kind} {p}", kind, {**recipe, "p": p}) for p in recipe["p"])
        else:
            yield kind, kind, recipe


def cost_of(workload: dict[str, Any]) -> IoCost:
    return IoCost.of_rates(**workload["cost"])


def fixed_policies(periods: list[int]) -> dict[str, Policy]:
    policies: dict[str, Policy] = {"full": Full(), "check_n_run": CheckNRun()}
    for period in periods:
        policies[f"incremental {period - 1}"] = Incremental(period - 1)
        policies[f"differential {period - 1}"] = Differential(period - 1)
    return policies


def _compare(workload: dict[str, Any], kind: str, recipe: dict[str, Any], seed: int, quick: bool) -> _Result:
    sizes, cost = workload["simulation"], cost_of(workload)
    num_rows = sizes["quick_rows" if quick else "rows"]
    trace = trace_of(kind, recipe, num_rows=num_rows, num_intervals=sizes["checkpoints"], seed=seed)
    policies = {**fixed_policies(sizes["periods"]), "adaptive": Adaptive(sizes["max_chain"])}
    accounts: dict[str, Account] = {
        name: simulate(trace, num_rows, policy, cost, sizes["id_bytes"] / sizes["record_bytes"])
        for name, policy in policies.items()
    }
    best = hindsight(trace, num_rows, cost.weight, [1, *sizes["periods"]])
    return _Result(
        totals={name: account.total(cost.weight) for name, account in accounts.items()},
        largest={name: account.largest / num_rows for name, account in accounts.items()},
        hindsight=best.threshold,
        per_row=best.per_row,
        period=statistics.median(accounts["adaptive"].periods),
    )


def _vs_best_fixed(workload: dict[str, Any], kind: str, results: dict[str, list[_Result]]) -> Measured:
    """Where a kind has several traces, a sample is the worst of one seed."""
    names = [name for name, its_kind, _ in _traces(workload) if its_kind == kind]
    samples = [max(seed.vs_best_fixed for seed in seeds) for seeds in zip(*(results[n] for n in names), strict=True)]
    best = statistics.mode(seed.best_fixed for name in names for seed in results[name])
    return Measured(name=f"io_vs_best_fixed_{kind}", unit="", samples=samples, reason=f"best fixed: {best}")


def _vs_hindsight(results: dict[str, list[_Result]]) -> Measured:
    """A sample is the worst trace of one seed."""
    worst = max(results, key=lambda name: statistics.median(seed.vs_hindsight for seed in results[name]))
    samples = [max(seed.vs_hindsight for seed in seeds) for seeds in zip(*results.values(), strict=True)]
    return Measured(name="io_vs_hindsight_threshold", unit="", samples=samples, reason=f"worst trace: {worst}")


def _detail(seeds: list[_Result]) -> dict[str, Any]:
    """Return medians over seeds; of families of policies the best member of each seed."""

    def family(name: str) -> float:
        return statistics.median(
            min(total for policy, total in seed.totals.items() if policy.split()[0] == name)
            / seed.totals[seed.best_fixed]
            for seed in seeds
        )

    names = ("full", "check_n_run", "incremental", "differential", "adaptive")
    return {
        "total_vs_best_fixed": {name: round(family(name), 4) for name in names},
        "best_fixed": [seed.best_fixed for seed in seeds],
        "adaptive_vs_hindsight_threshold": round(statistics.median(seed.vs_hindsight for seed in seeds), 4),
        "adaptive_vs_per_row_oracle": round(
            statistics.median(seed.totals["adaptive"] / seed.per_row for seed in seeds), 4
        ),
        "adaptive_period": statistics.median(seed.period for seed in seeds),
        "largest_save_of_rows": {
            name: round(statistics.median(seed.largest[name] for seed in seeds), 4)
            for name in ("adaptive", seeds[0].best_fixed)
        },
    }
