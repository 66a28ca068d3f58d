"""`ett report JOB --startup`: the nodes of a job's starts, the critical path, and what would gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ett.event_schema import NS
from ett.report_text import count
from ett.startup_log import StartedRank
from ett.startup_path import StartPath, start_path

SCHEMA = "ett.startup/v1"
_LEAST_GAIN_NS = NS // 1000  # a gain below it is not told


def slowest(starts: Sequence[StartedRank]) -> StartedRank:
    """Return the start that the newest attempt, or generation of it, waited for: it came last to its first step."""
    newest = max((start.attempt, start.generation) for start in starts)
    of_newest = [start for start in starts if (start.attempt, start.generation) == newest]
    return max(of_newest, key=lambda start: (start.total_ns is None, start.total_ns or 0, -start.rank))


def startup_json(starts: Sequence[StartedRank]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "data": {"job": starts[0].job, "starts": [_start_json(start) for start in starts]},
        "warnings": [],
    }


def _start_json(start: StartedRank) -> dict[str, Any]:
    path = start_path(start)
    nodes = [
        {
            "node": node.name,
            "span": node.span,
            "begin_ns": node.begin_ns - start.begin_ns,
            "ns": None if node.end_ns is None else node.end_ns - node.begin_ns,
            "waited_for": [] if path is None else [start.nodes[i].name for i in path.nodes[place].waited_for],
            "main_thread": node.is_on_main,
            "critical": None if path is None else path.nodes[place].is_critical,
            "gain_ns": None if path is None else path.nodes[place].gain_ns,
        }
        for place, node in enumerate(start.nodes)
    ]
    return {
        "attempt": start.attempt,
        "generation": start.generation,
        "rank": start.rank,
        "total_ns": start.total_ns,
        "serial_ns": None if path is None else path.serial_ns,
        "lag_ns": None if path is None else path.lag_ns,
        "critical_path": [] if path is None else [start.nodes[place].name for place in path.critical],
        "nodes": nodes,
    }


def startup_text(starts: Sequence[StartedRank]) -> str:
    """Return the lines of the newest start's slowest rank, and one for each other attempt or generation."""
    shown = slowest(starts)
    lines = [f"{shown.job}   {_title(shown, starts)}", *_table(shown)]
    path = start_path(shown)
    if path is None:
        lines.append("no first step yet, or a node that has no end: no critical path")
    else:
        lines += _path_lines(shown, path)
    earlier = sorted({(s.attempt, s.generation) for s in starts} - {(shown.attempt, shown.generation)})
    for attempt, generation in earlier:
        start = slowest([s for s in starts if (s.attempt, s.generation) == (attempt, generation)])
        lines.append(_title(start, starts))
    return "\n".join(lines)


def _title(start: StartedRank, starts: Sequence[StartedRank]) -> str:
    ranks = sum((s.attempt, s.generation) == (start.attempt, start.generation) for s in starts)
    which = f"attempt {start.attempt}" + (f", generation {start.generation}" if start.generation else "")
    took = "no first step" if start.total_ns is None else f"{_seconds(start.total_ns)} to the first step"
    return f"{which}: {took} of rank {start.rank}" + (f", the slowest of {count(ranks, 'rank')}" if ranks > 1 else "")


def _table(start: StartedRank) -> Iterator[str]:
    path = start_path(start)
    width = max([len(node.name) for node in start.nodes] + [len("node")])
    yield f"  {'node':<{width}}  {'start':>8}  {'took':>8}  {'gain':>8}  thread  waited for"
    for place, node in enumerate(start.nodes):
        took = "-" if node.end_ns is None else _seconds(node.end_ns - node.begin_ns)
        found = None if path is None else path.nodes[place]
        gain = "-" if found is None else _seconds(found.gain_ns) if found.gain_ns >= _LEAST_GAIN_NS else "0s"
        waited = "" if found is None else ", ".join(start.nodes[other].name for other in found.waited_for)
        mark = "*" if found is not None and found.is_critical else " "
        yield (
            f"{mark} {node.name:<{width}}  {_seconds(node.begin_ns - start.begin_ns):>8}  {took:>8}  {gain:>8}  "
            f"{'main' if node.is_on_main else 'own':<6}  {waited}"
        ).rstrip()


def _path_lines(start: StartedRank, path: StartPath) -> Iterator[str]:
    names = " -> ".join(start.nodes[place].name for place in path.critical)
    yield f"* critical path: {names}; {_seconds(path.lag_ns)} of it in none of them"
    saved_ns = path.serial_ns + path.lag_ns - path.total_ns
    yield f"one after the other: {_seconds(path.serial_ns + path.lag_ns)}; side by side saves {_seconds(saved_ns)}"
    gains = [(node.gain_ns, node.node.name) for node in path.nodes if node.gain_ns >= _LEAST_GAIN_NS]
    told = ", ".join(f"{name} {_seconds(gain)}" for gain, name in sorted(gains, key=lambda gain: -gain[0])[:3])
    yield f"what would gain most, if it took no time: {told or 'nothing'}"


def _seconds(ns: int) -> str:
    return f"{ns / NS:.3f}s"
