"""What `ett bench ett` prints of its shapes: both legs' components side by side, and what each switch is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ett.event_schema import COMPONENTS
from ett.trainer.bench.paired_figures import LOST


def shape_lines(name: str, told: Mapping[str, Any]) -> list[str]:
    """Args: told: of `shape_detail`."""
    plain, optimised = told["plain"], told["optimised"]
    lines = [
        "",
        f"{name}: ETT {_share(plain['ett'])} plain, {_share(optimised['ett'])} optimised: "
        f"{_points(told['gain_points'])} points; done {_s(told['wall_saved_s'])} s sooner",
        f"  lost {_s(plain['lost_s'])} s and {_s(optimised['lost_s'])} s; "
        f"a step {_s(plain['step_ms'])} ms and {_s(optimised['step_ms'])} ms",
        f"  {'seconds':<16}{'plain':>26}{'optimised':>26}{'saved':>9}{'direct':>9}{'cascade':>9}{'points':>9}",
    ]
    for component in COMPONENTS:
        row = (
            f"  {component:<16}{_s(plain['components_s'][component]):>26}{_s(optimised['components_s'][component]):>26}"
        )
        if component in LOST:
            gain = told["gain_by_component"][component]
            cascade = "-" if gain["cascade"] is None else f"{gain['cascade']:.1f}x"
            row += f"{gain['saved_s']:>9.1f}{gain['direct_s']:>9.1f}{cascade:>9}{gain['points']:>+9.1f}"
        lines.append(row)
    lines.append(f"  {_points(told['without_compilation_points'])} points if compiling had taken no time in either")
    for switch, without in told["left_out"].items():
        how = " (computed, not run)" if without.get("is_computed") else ""
        cost = without["costs_points"]
        lines.append(f"  without {switch}: ETT {_share(without['ett'])}, {_points(cost)} points less{how}")
    return lines


def _s(spread: Mapping[str, Any]) -> str:
    return f"{spread['median']:.1f}" + _range(spread, ".1f")


def _share(spread: Mapping[str, Any]) -> str:
    shown = f"{100 * spread['median']:.1f}"
    if spread["n"] > 1:
        shown += f" ({100 * spread['least']:.1f} to {100 * spread['most']:.1f})"
    return f"{shown} %"


def _points(spread: Mapping[str, Any]) -> str:
    return f"{spread['median']:+.1f}" + _range(spread, "+.1f")


def _range(spread: Mapping[str, Any], form: str) -> str:
    return f" ({spread['least']:{form}} to {spread['most']:{form}})" if spread["n"] > 1 else ""
