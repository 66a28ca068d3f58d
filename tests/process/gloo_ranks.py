"""Ranks of one of the programs in `ranks/`: a process each, that meet over gloo."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from wait import LONGEST_S
from warm_python import OF_RANKS, WarmProcess, start_warm

RANKS = Path(__file__).parent / "ranks"


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class StartedRank:
    process: WarmProcess
    out: Path
    err: Path

    def wait(self) -> RankEnd:
        code = self.process.wait(timeout=LONGEST_S)
        return RankEnd(code=code, out=self.out.read_text(), err=self.err.read_text())


def start_ranks(program: str, world_size: int, store: Path, *words: object) -> list[StartedRank]:
    """Start `program RANK WORLD_SIZE STORE WORDS`, once for each rank.

    Args: store: a file that is not there yet, where the ranks find each other; their output lies beside it.
    """
    environ = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(world_size):
        args = [str(RANKS / program), *map(str, (rank, world_size, store, *words))]
        out, err = Path(f"{store}-out{rank}"), Path(f"{store}-err{rank}")
        ranks.append(
            StartedRank(process=start_warm(args, environ, Path.cwd(), out, err, more=OF_RANKS), out=out, err=err)
        )
    return ranks


def run_ranks(program: str, world_size: int, store: Path, *words: object) -> list[RankEnd]:
    """Start them as `start_ranks` does; return how they ended."""
    return [rank.wait() for rank in start_ranks(program, world_size, store, *words)]


def run_ranks_well(program: str, world_size: int, store: Path, *words: object) -> list[str]:
    """Run them as `run_ranks` does; return what each printed, all of them having ended with 0."""
    ended = run_ranks(program, world_size, store, *words)
    assert [rank.code for rank in ended] == [0] * world_size, ended
    return [rank.out for rank in ended]
