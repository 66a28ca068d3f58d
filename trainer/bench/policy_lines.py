"""What `ett bench checkpoint` says of training under policies: a line each, details, and their order by loss."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ett.trainer.bench.policy_blocks import LEAST_TRIGGERS, Measured

_HEAD = (
    f"  {'every':>6} {'policy':<14} {'% lost':>7} {'stall ms p50':>13} {'p99':>8} {'max':>8} {'CPU s/wall s':>13}"
    f" {'none':>5} {'MB a save':>10} {'restore MB':>11} {'s':>6} {'prefetch/sweep/guard rows':>26} {'staged MiB':>11}"
)


def summary_of(measured: Measured) -> dict[str, Any]:
    """Return medians over blocks, quantiles over all saves."""
    stalls, facts, blocks = measured.stalls_s, measured.facts, measured.blocks
    p99 = measured.p99_stall_s()
    none_s = statistics.median(measured.none_s)
    found: dict[str, Any] = {
        "lost_pct": round(statistics.median(measured.lost_pct), 2),
        "lost_pct_blocks": [round(lost, 2) for lost in measured.lost_pct],
        "none_step_ms": round(1e3 * none_s, 3),
        "stall_ms": {
            "p50": round(1e3 * statistics.median(stalls), 3),
            "p99": None if p99 is None else round(1e3 * p99, 3),
            "max": round(1e3 * max(stalls), 3),
            "triggers": len(stalls),
        },
        "slower_between_stalls_pct": round(_slower_pct(measured), 2),
        "cpu_s_per_wall_s": round(sum(b.cpu_s for b in blocks) / sum(b.seconds for b in blocks), 3),
        "none_cpu_s_per_wall_s": round(statistics.median(measured.none_cpu_s) / none_s, 3),
        "cpu_s_a_save": round(_extra_cpu_s(measured) / len(stalls), 4),
        "saved_bytes": round(statistics.mean(each.num_bytes for each in facts)),
        "disk_mb_s": round(statistics.median(measured.disk_mb_s)),
        "restore_bytes": round(statistics.median(each.read_bytes for each in measured.restores)),
        "restore_s": round(statistics.median(each.seconds for each in measured.restores), 3),
    }
    if p99 is None:
        found["stall_ms"]["reason"] = f"p99 needs {LEAST_TRIGGERS} triggers"
    if any(each.guard_rows is not None for each in facts):
        for way in ("prefetch_rows", "sweep_rows", "guard_rows"):
            found[way] = sum(getattr(each, way) or 0 for each in facts)
        found["staged_bytes"] = max(each.staged_bytes or 0 for each in facts)
        found["waited_s"] = round(sum(each.waited_s or 0 for each in facts), 4)
        found["write_s"] = round(statistics.median(each.write_s for each in facts), 4)
    return found


def _slower_pct(measured: Measured) -> float:
    """Return by how much steps took longer, median over blocks, where training did not stand still for a save."""
    return statistics.median(
        100 * ((block.seconds - sum(block.stalls_s)) / block.num_steps / none - 1)
        for block, none in zip(measured.blocks, measured.none_s, strict=True)
    )


def _extra_cpu_s(measured: Measured) -> float:
    return sum(
        block.cpu_s - block.num_steps * none for block, none in zip(measured.blocks, measured.none_cpu_s, strict=True)
    )


def order_of(results: Mapping[int, Mapping[str, Measured]]) -> dict[int, list[str]]:
    """Return the policies of each interval, the one that loses least first."""
    return {every: sorted(of, key=lambda name: statistics.median(of[name].lost_pct)) for every, of in results.items()}


def lines_of(results: Mapping[int, Mapping[str, Measured]], num_bytes: int) -> list[str]:
    lines = [f"  tables of {num_bytes / 1e6:.0f} MB; a block of each policy between two blocks without saves", _HEAD]
    for every, of in results.items():
        lines += [_line(every, name, summary_of(measured)) for name, measured in of.items()]
    lines += [f"  by loss, every {every}: {' < '.join(names)}" for every, names in order_of(results).items()]
    return lines


def _line(every: int, name: str, found: dict[str, Any]) -> str:
    stall = found["stall_ms"]
    p99 = "-" if stall["p99"] is None else f"{stall['p99']:.1f}"
    ways = (
        "/".join(str(found[f"{way}_rows"]) for way in ("prefetch", "sweep", "guard")) if "guard_rows" in found else "-"
    )
    staged = f"{found['staged_bytes'] / 2**20:.1f}" if "staged_bytes" in found else "-"
    return (
        f"  {every:>6} {name:<14} {found['lost_pct']:>7.1f} {stall['p50']:>13.1f} {p99:>8} {stall['max']:>8.1f}"
        f" {found['cpu_s_per_wall_s']:>13.2f} {found['none_cpu_s_per_wall_s']:>5.2f}"
        f" {found['saved_bytes'] / 1e6:>10.1f} {found['restore_bytes'] / 1e6:>11.1f} {found['restore_s']:>6.2f}"
        f" {ways:>26} {staged:>11}"
    )
