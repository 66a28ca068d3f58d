"""Points of the protocol, of which the campaign's operations are parts, and how many faults each gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ett.checkpoint.bench.faults.family import Cell

PHASES = {
    "create": "written",  # under a temporary name, which nobody looks for
    "write": "written",
    "fsync": "written",
    "link": "named",  # from here on others can see it, and its name has to last
    "unlink": "named",
    "folder sync": "named",
    "read": "read",
    "stat": "read",
    "list": "read",
    "get": "read",
    "head": "read",
    "uploads": "read",
    "delete": "deleted",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """How many faults: `per_point` or more of each kind at each point of the protocol, `least` or more in each cell."""

    per_point: int
    least: int = 1

    def of_cells(self, cells: Iterable[Cell]) -> dict[Cell, int]:
        """Return how many faults each cell of a family gets: those of a point share them evenly, rounded up."""
        groups = {cell: (cell.kind, protocol_point(cell.point)) for cell in cells}
        sizes = Counter(groups.values())
        return {cell: max(self.least, -(-self.per_point // sizes[group])) for cell, group in groups.items()}


def protocol_point(point: str) -> str:
    """Return the protocol's point that an operation belongs to: "2 segment fsync" is of "2 segment written".

    That is the number of the step, the kind of file, and what happens to it. What is no operation is a point itself.
    """
    step, _, rest = point.partition(" ")
    role, _, verb = rest.partition(" ")
    return f"{step} {role} {PHASES[verb]}" if step.isdecimal() and verb in PHASES else point
