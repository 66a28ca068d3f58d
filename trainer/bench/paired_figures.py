"""The arithmetic of the paired benchmark: from the rows of its legs to figures. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ett.event_schema import COMPONENTS, NS
from ett.figures import Measured
from ett.trainer.bench.paired_workload import OPTIMISED, PLAIN, Campaign, Leg

Row = Mapping[str, Any]
Rows = Mapping[str, Row]  # by str(Leg)
LOST = tuple(name for name in COMPONENTS if name != "effective")


def ett(row: Row) -> float:
    return float(row["ns"]["effective"] / row["wall_ns"])


def lost_s(row: Row) -> float:
    return float((row["wall_ns"] - row["ns"]["effective"]) / NS)


def pairs(campaign: Campaign, rows: Rows, variant: str = OPTIMISED) -> dict[str, list[tuple[Row, Row]]]:
    """Return, by shape, each repeat's plain leg with that of a variant, as far as both are there."""
    found: dict[str, list[tuple[Row, Row]]] = {}
    for shape in campaign.shapes:
        keys = [
            (str(Leg(shape.name, PLAIN, repeat)), str(Leg(shape.name, variant, repeat)))
            for repeat in range(1, campaign.repeats + 1)
        ]
        found[shape.name] = [(rows[plain], rows[other]) for plain, other in keys if plain in rows and other in rows]
    return found


def figures_of(campaign: Campaign, rows: Rows) -> list[Measured]:
    """Return the table [ett]; a shape whose plain ETT is not one of the paper's is no sample of it.

    What the optimised legs did without is told beside each figure.
    """
    low, high = campaign.plain_ett
    kept, left_out = [], []
    for name, of_shape in pairs(campaign, rows).items():
        plain = statistics.median(ett(pair[0]) for pair in of_shape)
        if low <= plain <= high:
            kept += of_shape
        else:
            left_out.append(f"{name}: plain ETT is {plain:.1%}, outside of {low:.0%} to {high:.0%}")
    absent = [f"not switched on: {', '.join(campaign.absent)}"] if campaign.absent else []
    said = "; ".join([*left_out, *absent])
    return [
        Measured(name="gain_points", unit="points", samples=[100 * (ett(o) - ett(p)) for p, o in kept], reason=said),
        Measured(name="optimised_ett", unit="", samples=[ett(o) for _, o in kept], reason=said),
        Measured(
            name="lost_seconds_removed",
            unit="",
            samples=[1 - lost_s(o) / lost_s(p) for p, o in kept],
            reason=said,
        ),
    ]


def shape_detail(campaign: Campaign, rows: Rows, shape: str) -> dict[str, Any]:
    """Return what is told of one shape: medians, each with its least and most, over the repeats."""
    of_shape = pairs(campaign, rows)[shape]
    plain, optimised = [p for p, _ in of_shape], [o for _, o in of_shape]
    return {
        "plain": _leg_detail(plain),
        "optimised": _leg_detail(optimised),
        "gain_points": _spread([100 * (ett(o) - ett(p)) for p, o in of_shape]),
        "gain_by_component": {name: _gain(of_shape, name) for name in LOST},
        # ETT does not see steps that became slower, such as beside a save: this does.
        "wall_saved_s": _spread([(p["wall_ns"] - o["wall_ns"]) / NS for p, o in of_shape]),
        "without_compilation_points": _spread(
            [100 * (_without_compilation(o) - _without_compilation(p)) for p, o in of_shape]
        ),
        "left_out": _left_out(campaign, rows, shape),
    }


def _leg_detail(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "ett": _spread([ett(row) for row in rows]),
        "wall_s": _spread([row["wall_ns"] / NS for row in rows]),
        "lost_s": _spread([lost_s(row) for row in rows]),
        "step_ms": _spread([row["step_ms"] for row in rows]),
        "components_s": {name: _spread([row["ns"][name] / NS for row in rows]) for name in COMPONENTS},
    }


def _gain(of_shape: Sequence[tuple[Row, Row]], name: str) -> dict[str, Any]:
    """Return what a component lost less: in points of ETT's whole, in seconds, and in which part of the job.

    `direct_s` is until the first failure: what a job that never fails would gain. `cascade` is all of it over that:
    1 + the failures, where every restart pays the whole again; null where nothing is gained before the first failure.
    """
    saved = statistics.median((p["ns"][name] - o["ns"][name]) / NS for p, o in of_shape)
    direct = statistics.median((p["first_ns"][name] - o["first_ns"][name]) / NS for p, o in of_shape)
    shares = [100 * (p["ns"][name] / p["wall_ns"] - o["ns"][name] / o["wall_ns"]) for p, o in of_shape]
    return {
        "points": round(statistics.median(shares), 3),
        "saved_s": round(saved, 3),
        "direct_s": round(direct, 3),
        "cascade": round(saved / direct, 2) if direct > 0 else None,
    }


def _left_out(campaign: Campaign, rows: Rows, shape: str) -> dict[str, Any]:
    """Return what ETT is with one switch off, and how many points that costs, by switch; what was not run is not there.

    Publishing has no switch in a recipe: its row adds the measured time of the export, which runs after the job, to the
    job. That is arithmetic, not a leg.
    """
    found: dict[str, Any] = {}
    repeats = range(1, campaign.repeats + 1)
    with_all = {n: rows[key] for n in repeats if (key := str(Leg(shape, OPTIMISED, n))) in rows}
    for switch in campaign.switches:
        legs = {n: rows[key] for n in with_all if (key := str(Leg(shape, f"without {switch.name}", n))) in rows}
        if legs:
            found[switch.name] = {
                "ett": _spread([ett(row) for row in legs.values()]),
                "costs_points": _spread([100 * (ett(with_all[n]) - ett(row)) for n, row in legs.items()]),
            }
    inside = [row["ns"]["effective"] / (row["wall_ns"] + row["publish_s"] * NS) for row in with_all.values()]
    costs = [100 * (ett(row) - one) for row, one in zip(with_all.values(), inside, strict=True)]
    found["publishing outside the job"] = {"ett": _spread(inside), "costs_points": _spread(costs), "is_computed": True}
    return found


def _without_compilation(row: Row) -> float:
    """ETT of a leg if compiling had taken no time."""
    return float(row["ns"]["effective"] / (row["wall_ns"] - row["ns"]["compilation"]))


def _spread(values: Sequence[float]) -> dict[str, float | int]:
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
        "n": len(values),
    }
