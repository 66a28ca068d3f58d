"""A family of faults: cells of kind and point, and how one fault of a cell is injected."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ett.checkpoint.bench.faults.verdict import Verdict


@dataclass(frozen=True, order=True, slots=True)
class Cell:
    kind: str
    point: str


class Family(Protocol):
    name: str

    def cells(self) -> list[Cell]:
        """Return all cells, in an order that does not depend on the run."""

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        """Inject one fault, restore, and judge. Args: scratch: an empty folder of this fault's own."""
