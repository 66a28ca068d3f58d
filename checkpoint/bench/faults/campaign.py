"""The campaign: every cell of every family, and how many faults each gets.

`python -m ett.checkpoint.bench.faults.campaign FAMILY KIND POINT NUMBER [--seed N]` injects one of them again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett.checkpoint.bench.faults.clock_faults import ClockFaults
from ett.checkpoint.bench.faults.damage_faults import DamageFaults, RotFaults
from ett.checkpoint.bench.faults.family import Cell, Family
from ett.checkpoint.bench.faults.kill_faults import KillFaults
from ett.checkpoint.bench.faults.life_faults import LifeFaults
from ett.checkpoint.bench.faults.protocol_points import Amount
from ett.checkpoint.bench.faults.quiet import quiet
from ett.checkpoint.bench.faults.s3_faults import S3Faults
from ett.checkpoint.bench.faults.save_faults import SaveFaults, StartFaults
from ett.checkpoint.bench.faults.surroundings import Surroundings, surroundings
from ett.checkpoint.bench.faults.upload_faults import UploadFaults
from ett.checkpoint.bench.faults.verdict import OUTCOMES, Verdict, judged
from ett.checkpoint.bench.faults.worlds import (
    World,
    chain_world,
    fresh_world,
    full_world,
    policy_world,
    restarted_world,
    single_world,
)

SHARED_MEMORY = Path("/dev/shm")
SHOWN_PER_CELL = 3


@dataclass(kw_only=True, slots=True)
class CellTally:
    """What became of the faults of a cell. wrong: commands that inject those that were lost again, and why."""

    family: str
    kind: str
    point: str
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.outcomes.values())

    def as_json(self) -> dict[str, Any]:
        facts = {"family": self.family, "kind": self.kind, "point": self.point, "count": self.count}
        return {**facts, **self.outcomes, **({"wrong": self.wrong} if self.wrong else {})}


@dataclass(frozen=True, slots=True)
class Work:
    """The faults of a cell, numbered from 0 to `count`."""

    family: Family
    cell: Cell
    count: int


class Campaign:
    """The families over worlds of one seed.

    Args: scratch: a folder of its own, best in memory. around: what else it needs; None: only the families in memory.
    """

    def __init__(self, seed: int, scratch: Path, around: Surroundings | None = None) -> None:
        self._seed, self._scratch = seed, scratch
        with quiet(random.Random(seed)):
            built = self._built(scratch / "worlds", scratch / "trials", around)
            self.families = {family.name: family for family in built}

    def work(self, amount: Amount, families: tuple[str, ...] = ()) -> list[Work]:
        """Return what there is to do, in the same order in every process: all families, or those that are named."""
        chosen = [family for family in self.families.values() if not families or family.name in families]
        return [Work(family, *some) for family in chosen for some in amount.of_cells(family.cells()).items()]

    def run(self, work: Iterable[Work]) -> list[CellTally]:
        """Inject the faults of these cells."""
        return [tally for part in work for tally in self._run_cell(part.family, part.cell, part.count)]

    def inject(self, family: Family, cell: Cell, number: int) -> Verdict:
        """Inject one fault: the same for the same seed."""
        chance = random.Random(f"{self._seed} {family.name} {cell.kind} {cell.point} {number}")
        scratch = self._scratch / "fault"
        scratch.mkdir()
        try:
            with quiet(chance):
                return judged(lambda: family.inject(cell, chance, scratch))
        finally:
            shutil.rmtree(scratch)

    def _run_cell(self, family: Family, cell: Cell, count: int) -> list[CellTally]:
        tallies: dict[str, CellTally] = {}
        for number in range(count):
            verdict = self.inject(family, cell, number)
            for point in verdict.points or (cell.point,):
                tally = tallies.setdefault(point, CellTally(family=family.name, kind=cell.kind, point=point))
                tally.outcomes[verdict.outcome] += 1
                if verdict.outcome in ("silent", "crashed") and len(tally.wrong) < SHOWN_PER_CELL:
                    tally.wrong.append(f"{replay_command(family, cell, number, self._seed)}  # {verdict.why}")
        return list(tallies.values())

    def _built(self, worlds: Path, trials: Path, around: Surroundings | None) -> Iterator[Family]:
        full, chain = full_world(worlds / "full", self._seed), chain_world(worlds / "chain", self._seed + 1)
        restarted = restarted_world(worlds / "restarted", self._seed + 2)
        fresh: World = fresh_world(worlds / "fresh", self._seed + 3)
        tracked = policy_world(worlds / "tracked", self._seed + 5)
        yield SaveFaults([full, chain, tracked], trials / "save")
        yield StartFaults([full, chain, fresh], trials / "start")
        yield DamageFaults([full, chain, restarted])
        yield RotFaults([full, chain, tracked])
        yield LifeFaults([full, chain])
        yield ClockFaults([full, chain])
        yield UploadFaults(full, trials / "upload")
        if around is not None:
            yield KillFaults([full, chain], around, trials / "process")
        if around is not None and around.bucket is not None:
            yield S3Faults(around.bucket, single_world(worlds / "single", self._seed + 4))


def replay_command(family: Family, cell: Cell, number: int, seed: int) -> str:
    words = " ".join(f'"{word}"' if " " in word else word for word in (family.name, cell.kind, cell.point))
    return f"python -m ett.checkpoint.bench.faults.campaign {words} {number} --seed {seed}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder in memory where there is one, else below the current folder."""
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 1 << 30 else Path.cwd()
    with tempfile.TemporaryDirectory(prefix="ett-bench-faults-", dir=where) as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Inject one fault of the campaign again, and say what became of it.")
    parser.add_argument("family")
    parser.add_argument("kind")
    parser.add_argument("point")
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    needs_more = asked.family in ("s3", "process")
    with scratch_folder() as scratch:
        with surroundings(scratch) if needs_more else nullcontext() as around:
            campaign = Campaign(asked.seed, scratch, around)
            family, cell = campaign.families.get(asked.family), Cell(asked.kind, asked.point)
            if family is None:
                parser.error(
                    f"no family is {asked.family!r}; expected one of {', '.join(campaign.families)}, process, s3"
                )
            if cell not in family.cells():
                known = ", ".join(f"{each.kind} {each.point!r}" for each in family.cells() if each.kind == asked.kind)
                kinds = ", ".join(sorted({each.kind for each in family.cells()}))
                parser.error(
                    f"{family.name} has no {cell.kind} at {cell.point!r}; expected {known or 'a kind of ' + kinds}"
                )
            verdict = campaign.inject(family, cell, asked.number)
    print(f"{verdict.outcome} {verdict.why}")


if __name__ == "__main__":
    main()
