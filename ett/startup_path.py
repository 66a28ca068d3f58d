"""Which nodes of a start decide when its first step comes, and how much sooner it came if one took no time.

A node begins when the last one that it waited for has ended, and some time later: its lag (a thread that starts, a
program's lines between two spans). Played again with one node's time taken away and every lag kept, the graph says what
that would gain. What it does not know: a node that shares the processor with fewer others is done sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ett.startup_log import PROCESS, StartedNode, StartedRank


@dataclass(frozen=True, kw_only=True, slots=True)
class PathNode:
    """A node of a start that has come to its first step."""

    node: StartedNode
    waited_for: tuple[int, ...]  # places of nodes in the start
    is_critical: bool
    gain_ns: int  # by which the first step came sooner if the node took no time


@dataclass(frozen=True, kw_only=True, slots=True)
class StartPath:
    nodes: tuple[PathNode, ...]  # as in the start
    total_ns: int  # from the begin to the first step
    serial_ns: int  # all nodes one after the other
    critical: tuple[int, ...]  # places, in order of time; what lies between them is lag

    @property
    def lag_ns(self) -> int:
        """Return the time of the critical path in which none of its nodes runs."""
        return self.total_ns - sum(_duration(self.nodes[place].node) for place in self.critical)


def start_path(start: StartedRank) -> StartPath | None:
    """Return the path of a start; None where it has not come to a step, or a node has no end."""
    if start.first_step_ns is None or any(node.end_ns is None for node in start.nodes):
        return None
    waits = [_waits_of(start.nodes, place) for place in range(len(start.nodes))]
    critical = _critical(start, waits)
    gains = [start.first_step_ns - _played(start, waits, without) for without in range(len(start.nodes))]
    return StartPath(
        nodes=tuple(
            PathNode(node=node, waited_for=waits[place], is_critical=place in critical, gain_ns=gains[place])
            for place, node in enumerate(start.nodes)
        ),
        total_ns=start.first_step_ns - start.begin_ns,
        serial_ns=sum(map(_duration, start.nodes)),
        critical=critical,
    )


def _waits_of(nodes: Sequence[StartedNode], place: int) -> tuple[int, ...]:
    """Return the places of the nodes that this one waited for: those that it names, and its turn on the main thread."""
    own = nodes[place]
    named = own.after or ()
    waits = {other for other in range(place) if nodes[other].after is not None and nodes[other].name in named}
    before = [other for other in range(place) if _end(nodes[other]) <= own.begin_ns]
    turns = [other for other in before if own.after is None or nodes[other].is_on_main] if own.is_on_main else []
    if turns:
        waits.add(max(turns, key=lambda other: (_end(nodes[other]), other)))
    return tuple(sorted(waits)) or tuple(other for other in before if nodes[other].name == PROCESS)


def _critical(start: StartedRank, waits: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    path: list[int] = []
    reached: Sequence[int] = range(len(start.nodes))
    while reached:
        path.append(max(reached, key=lambda place: (_end(start.nodes[place]), place)))
        reached = waits[path[-1]]
    return tuple(reversed(path))


def _played(start: StartedRank, waits: Sequence[tuple[int, ...]], without: int) -> int:
    """Return when the first step begins if the node at `without` takes no time."""
    assert start.first_step_ns is not None
    ends: list[int] = []
    for place, node in enumerate(start.nodes):
        before = [(_end(start.nodes[other]), ends[other]) for other in waits[place]]
        lag_ns = node.begin_ns - max((was for was, _ in before), default=start.begin_ns)
        begin_ns = max((now for _, now in before), default=start.begin_ns) + lag_ns
        ends.append(begin_ns + (0 if place == without else _duration(node)))
    last_ns = max(map(_end, start.nodes), default=start.begin_ns)
    return max(ends, default=start.begin_ns) + start.first_step_ns - last_ns


def _end(node: StartedNode) -> int:
    assert node.end_ns is not None
    return node.end_ns


def _duration(node: StartedNode) -> int:
    return _end(node) - node.begin_ns
