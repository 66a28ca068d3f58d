"""Figures: the targets of benchmarks/figures.toml, and what one run of a benchmark measured against them."""

from __future__ import annotations

import operator
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ett.errors import NotFound

FIGURES = Path(__file__).resolve().parents[1] / "benchmarks" / "figures.toml"
OPERATORS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt}


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    name: str
    kind: Literal["cpu", "h200"]  # the machine on which the target holds
    op: str
    target: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One figure of one run: its samples, or the reason why this machine cannot show it."""

    name: str
    unit: str
    samples: Sequence[float] = ()
    reason: str = ""

    @property
    def value(self) -> float | None:
        return statistics.median(self.samples) if self.samples else None

    @property
    def spread(self) -> float | None:
        """Interquartile range of the samples, in `unit`; None for fewer than four."""
        if len(self.samples) < 4:
            return None
        low, _, high = statistics.quantiles(self.samples, n=4)
        return high - low


def load_targets(table: str, *, quick: bool, path: Path = FIGURES) -> dict[str, Target]:
    """Return the targets of one table of figures.toml, with `quick` targets where asked for and given.

    Raises: NotFound: the file is not there (a wheel has no benchmarks/), or it has no such table.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError as err:
        raise NotFound(f"{path} does not exist", do="run `ett bench` from a checkout of the repository") from err
    if table not in tables:
        raise NotFound(f"no table [{table}] in {path}", expected=", ".join(sorted(tables)))
    return {
        name: Target(
            name=name,
            kind=row["kind"],
            op=row["op"],
            target=row.get("quick", row["target"]) if quick else row["target"],
        )
        for name, row in tables[table].items()
    }


def judge(targets: dict[str, Target], measured: Sequence[Measured], machine_kind: str) -> list[dict[str, Any]]:
    """Return one row per target, in the order of the file; a figure that was not measured says so and is null."""
    by_name = {figure.name: figure for figure in measured}
    unknown = sorted(set(by_name) - set(targets))
    assert not unknown, f"measured figures without a target: {unknown}"
    return [_row(target, by_name.get(name), machine_kind) for name, target in targets.items()]


def _row(target: Target, figure: Measured | None, machine_kind: str) -> dict[str, Any]:
    reason, value = "", None
    if figure is None or figure.value is None:
        reason = figure.reason if figure else f"needs a machine of kind {target.kind}, this one is {machine_kind}"
    else:
        value, reason = figure.value, figure.reason
    return {
        "name": target.name,
        "value": value,
        "unit": figure.unit if figure else "",
        "op": target.op,
        "target": target.target,
        "met": _met(target, value, machine_kind),
        "spread": figure.spread if figure else None,
        "n": len(figure.samples) if figure else 0,
        "reason": reason,
    }


def _met(target: Target, value: float | None, machine_kind: str) -> bool | None:
    if value is None or target.kind not in (machine_kind, "cpu"):
        return None
    return bool(OPERATORS[target.op](value, target.target))
