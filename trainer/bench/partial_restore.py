"""The part of `ett bench recovery` on ranks that live on: what they read of a commit, beside a rank that is new.

One rank's tables, at shares of rows that have changed since the commit. Those are drawn evenly: the worst that there is
for what skips whole blocks.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.bench.bench_disk import drop_from_cache
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.spent import Spent, spent
from ett.checkpoint.table import TableRows, copy_of_rows
from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad

Say = Callable[[str], None]


class _Told(QuietRun):
    """Keeps what was said of a restore."""

    def __init__(self) -> None:
        self.restore: dict[str, Any] = {}

    def restored(self, step: int, cursor: int, **fields: Any) -> None:
        self.restore = fields


class _Rank:
    """A rank's tables, in memory."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._dim = plan["dim"]
        place: dict[str, Any] = {"dim": self._dim, "num_rows": 0, "rank": 0, "world_size": 1}
        names = [f"t{number}" for number in range(plan["tables"])]
        self.tables = [
            EmbeddingShard(name, RowInit(name, seed=1, dim=self._dim, scale=0.1), Adagrad(1e-8), **place)
            for name in names
        ]
        self._module = nn.Module()
        self._module.tables = nn.ModuleList(self.tables)

    def fill(self, num_rows: int) -> None:
        for table in self.tables:
            rows = torch.rand(num_rows, self._dim)
            table.begin_import(num_rows)
            table.import_rows(TableRows(ids=torch.arange(num_rows), weights=rows, states={"momentum1": rows.square()}))
            table.end_import()

    def train(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        for table in self.tables:
            table.update(ids, torch.ones(len(ids), self._dim), 0.1)

    def checkpointer(self, folder: Path, run: QuietRun) -> Checkpointer:
        config = CheckpointConfig(uri=str(folder), policy="incremental", background=False)
        return Checkpointer(config, model=self._module, run=run)

    def image(self) -> list[str]:
        rows = [copy_of_rows(table) for table in self.tables]
        return [_hash(part) for one in rows for part in (one.ids, one.weights, *one.states.values())]


@dataclass(frozen=True, slots=True)
class _Row:
    """One restore. changed: the share of rows that had."""

    changed: float
    scope: str
    taken: Spent
    read_bytes: int
    kept_bytes: int


def partial_figures(workload: Mapping[str, Any], quick: bool, say: Say) -> tuple[Sequence[Measured], dict[str, Any]]:
    """Restore one commit in ranks that live on and in new ones, in turn, cold, on the disk of the current folder.

    No figure of the table is about this: all of it is detail.
    Raises: ThresholdMissed: a restore brought other bits than were saved, or none of them stayed.
    """
    plan = workload["partial"]
    num_rows, rounds = (plan[f"quick_{name}" if quick else name] for name in ("rows", "rounds"))
    with _one_thread(), tempfile.TemporaryDirectory(prefix=".ett-bench-partial-", dir=".") as made:
        folder = Path(made).absolute()
        lives_on = _Rank(plan)
        lives_on.fill(num_rows)
        first = lives_on.checkpointer(folder, QuietRun())
        first.restore()
        first.save(1, 1)
        first.close()
        whole, draw, rows = lives_on.image(), np.random.default_rng(0), []
        for changed in plan["changed"]:
            for _ in range(rounds):
                lives_on.train(np.sort(draw.choice(num_rows, max(1, int(changed * num_rows)), replace=False)))
                rows += [_restored(who, folder, changed, whole) for who in (lives_on, _Rank(plan))]
    table = _summed(rows, plan["changed"])
    for line in table:
        say(
            f"{line['changed']:.2%} of the rows changed: a rank that lives on reads {line['partial_mb']:.0f} MB in "
            f"{line['partial_s']:.2f} s, a new one {line['full_mb']:.0f} MB in {line['full_s']:.2f} s"
        )
    return [], {"restore_partial": table}


def _restored(rank: _Rank, folder: Path, changed: float, whole: list[str]) -> _Row:
    run = _Told()
    is_new = not len(rank.tables[0])
    checkpointer = rank.checkpointer(folder, run)
    drop_from_cache(folder)
    taken = spent(checkpointer.restore)
    checkpointer.close()
    told = run.restore
    if rank.image() != whole:
        raise ThresholdMissed(f"a {told['scope']} restore brought other rows than were saved")
    if told["scope"] != ("full" if is_new else "partial"):
        raise ThresholdMissed(f"a restore was {told['scope']}", expected="partial where the tables were there")
    return _Row(changed, told["scope"], taken, told["read_bytes"], told["kept_bytes"])


def _summed(rows: Sequence[_Row], shares: Sequence[float]) -> list[dict[str, Any]]:
    table = []
    for changed in shares:
        line: dict[str, Any] = {"changed": changed}
        for scope in ("partial", "full"):
            of_scope = [row for row in rows if (row.changed, row.scope) == (changed, scope)]
            seconds = [round(row.taken.seconds, 4) for row in of_scope]
            line |= {
                f"{scope}_s": statistics.median(seconds),
                f"{scope}_all_s": seconds,
                f"{scope}_mb": of_scope[0].read_bytes / 1e6,
                f"{scope}_disk_mb": statistics.median(row.taken.read_bytes for row in of_scope) / 1e6,
                f"{scope}_kept_mb": of_scope[0].kept_bytes / 1e6,
            }
        table.append(line)
    return table


@contextmanager
def _one_thread() -> Iterator[None]:
    """As the product does by default."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _hash(tensor: torch.Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
