"""Ranks of one of the programs in `ranks/`: a process each, that meet over gloo."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from wait import LONGEST_S
from warm_python import start_warm

RANKS = Path(__file__).parent / "ranks"


@dataclass(frozen=True, kw_only=True)
class RankEnd:
    code: int
    out: str
    err: str


def run_ranks(program: str, world_size: int, store: Path, *words: object) -> list[RankEnd]:
    """Run `program RANK WORLD_SIZE STORE WORDS`, once for each rank; return how they ended.

    Args: store: a file that is not there yet, where the ranks find each other; their output lies beside it.
    """
    environ = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    files = [(Path(f"{store}-out{rank}"), Path(f"{store}-err{rank}")) for rank in range(world_size)]
    ranks = []
    for rank, (out, err) in enumerate(files):
        args = [str(RANKS / program), *map(str, (rank, world_size, store, *words))]
        ranks.append(start_warm(args, environ, Path.cwd(), out, err))
    codes = [rank.wait(timeout=LONGEST_S) for rank in ranks]
    return [
        RankEnd(code=code, out=out.read_text(), err=err.read_text())
        for code, (out, err) in zip(codes, files, strict=True)
    ]


def run_ranks_well(program: str, world_size: int, store: Path, *words: object) -> list[str]:
    """Run them as `run_ranks` does; return what each printed, all of them having ended with 0."""
    ended = run_ranks(program, world_size, store, *words)
    assert [rank.code for rank in ended] == [0] * world_size, ended
    return [rank.out for rank in ended]
