"""Figures of checkpoints of tables in device memory: throughput lost beside training without, stalls, memory."""

from __future__ import annotations

import gc
import json
import shutil
import statistics
import tempfile
import time
import tomllib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ett.checkpoint.bench.bench_disk import Disk
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.save_facts import SaveFacts
from ett.checkpoint.table import TableRows, copy_of_rows
from ett.errors import ThresholdMissed
from ett.figures import FIGURES, Measured
from ett.trainer.bench.bench_cache import Cached
from ett.trainer.bench.device_model import Batch, Ours, make_batches
from ett.trainer.bench.policy_blocks import LEAST_TRIGGERS
from ett.trainer.bench.policy_savers import WAIT_S, Watched
from ett.trainer.embedding.device_tables import DeviceTable
from ett.trainer.embedding.fused_optimizer import EmbOptimType

WORKLOAD = FIGURES.parent / "workloads" / "checkpoint-device.toml"


class DeviceJob:
    """A model that trains, and is saved."""

    def __init__(self, workload: dict[str, Any], *, is_cached: bool) -> None:
        optimizer = EmbOptimType(workload["tables"]["optimizer"])
        self.side = (Cached if is_cached else Ours)(workload, optimizer)
        self.side.most_ahead = workload["train"]["most_ahead"]
        self.model = nn.ModuleDict({"tables": self.side.tables, "dense": self.side.module})
        self.batches = self.side.laid_out(make_batches(workload))
        self._next: deque[Batch] = deque()

    def train(self, steps: int, *, is_waited_for: bool = True) -> None:
        """Args: is_waited_for: return when the device is done; else it may be as far behind as in any step."""
        while len(self._next) < steps:
            self._next.extend(self.batches)
        self.side.train([self._next.popleft() for _ in range(steps)], steps, is_waited_for=is_waited_for)

    @property
    def parts(self) -> list[DeviceTable]:
        return list(self.side.tables.embedding_bags.values())  # type: ignore[arg-type]

    def copy(self) -> list[TableRows]:
        return [copy_of_rows(part) for part in self.parts]

    def num_capture_bytes(self) -> int:
        return sum(block.capture.num_bytes for block in self.side.tables.blocks)

    def checkpointer(self, folder: Path, workload: dict[str, Any], run: QuietRun) -> Checkpointer:
        saves = workload["saves"]
        config = CheckpointConfig(
            uri=str(folder),
            interval="1 steps",
            policy="adaptive",
            background=True,
            max_chain=saves["max_chain"],
            keep_last=saves.get("keep_last", 2),
            staging_bytes=saves["staging_bytes"],
            device_staging_bytes=saves["device_staging_bytes"],
        )
        return Checkpointer(config, model=self.model, optimizer=self.side.adam, run=run)


@dataclass(slots=True)
class Lost:
    """What saves cost: of every block, of every trigger."""

    lost_pct: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    none_step_s: list[float] = field(default_factory=list)
    disk_gb_s: list[float] = field(default_factory=list)
    staging_mib: list[float] = field(default_factory=list)
    facts: list[SaveFacts] = field(default_factory=list)

    def p99_stall_s(self) -> float | None:
        """Return None for too few triggers."""
        return statistics.quantiles(self.stalls_s, n=100)[-1] if len(self.stalls_s) >= LEAST_TRIGGERS else None

    def detail(self, batches: int) -> dict[str, Any]:
        saved = statistics.mean(each.num_bytes for each in self.facts)
        none_s = statistics.median(self.none_step_s)
        p99 = self.p99_stall_s()
        return {
            "batches": batches,
            "lost_pct": [round(lost, 2) for lost in self.lost_pct],
            "none_step_ms": round(1e3 * none_s, 3),
            "stall_ms_p50": round(1e3 * statistics.median(self.stalls_s), 3),
            "stall_ms_p99": None if p99 is None else round(1e3 * p99, 3),
            "stall_ms_max": round(1e3 * max(self.stalls_s), 3),
            "triggers": len(self.stalls_s),
            "saved_mb": round(saved / 1e6, 1),
            "saved_gb_s_wanted": round(saved / 1e9 / (none_s * batches), 3),
            "disk_gb_s": [round(rate, 2) for rate in self.disk_gb_s],
            "write_s": round(statistics.median(each.write_s for each in self.facts), 3),
            "sweep_rows": sum(each.sweep_rows or 0 for each in self.facts),
            "kept_rows": sum(each.guard_rows or 0 for each in self.facts),
            "waited_s": round(sum(each.waited_s or 0 for each in self.facts), 4),
            "staged_mib": round(max(each.staged_bytes or 0 for each in self.facts) / 2**20, 1),
            "device_mib": round(max(self.staging_mib), 1),
        }


def device_saves_figures(
    quick: bool, say: Callable[[str], None], *, often: bool = True
) -> tuple[list[Measured], dict[str, Any]]:
    """Measure the figures of checkpoints that need a GPU.

    Args: often: also where the disk is what bounds it.

    Raises: ThresholdMissed: a commit did not hold the rows of its step boundary.
    """
    workload = tomllib.loads(WORKLOAD.read_text())
    torch.set_float32_matmul_precision(workload["dense"]["precision"])
    with tempfile.TemporaryDirectory(prefix=".ett-bench-checkpoint-", dir=".") as name:
        folder = Path(name).absolute()
        detail: dict[str, Any] = {"checked_rows": sum(check_commits(workload, folder, c, say) for c in (False, True))}
        found: dict[str, Lost] = {}
        for kind, is_cached in (("hbm", False), ("cached", True)):
            job = DeviceJob(workload, is_cached=is_cached)
            job.train(workload["train"]["batches"] if is_cached else 2 * workload["saves"]["warm_steps"])
            blocks = {"blocks": 1 if quick else workload["saves"]["cached_blocks" if is_cached else "blocks"]}
            for every, more in (("", blocks), ("_often", workload["often"]))[: 1 + often]:
                sizes = workload["saves"] | more
                lost = measure(job, workload | {"saves": sizes}, folder, partial(say_of, kind, say))
                found[kind + every], detail[kind + every] = lost, lost.detail(sizes["batches"])
                say(f"{kind}{every}: {json.dumps(detail[kind + every])}")
            del job
            torch.cuda.empty_cache()
    return _figures(found, workload["saves"]["batches"]), detail


def say_of(kind: str, say: Callable[[str], None], line: str) -> None:
    say(f"{kind}: {line}")


def measure(job: DeviceJob, workload: dict[str, Any], folder: Path, say: Callable[[str], None]) -> Lost:
    saves, lost = workload["saves"], Lost()
    disk = Disk(folder / f"disk{time.monotonic_ns()}", saves["disk_bytes"])
    gc.collect()  # an earlier model, whose memory would come back within a block
    before = _none_s(job, saves)
    for _ in range(saves["blocks"]):
        lost.disk_gb_s.append(disk.num_bytes / 1e9 / disk.write_s("direct"))
        disk.remove()
        torch.cuda.reset_peak_memory_stats()
        seconds, stalls, facts = _block(job, workload, folder / "saves")
        lost.staging_mib.append((torch.cuda.max_memory_allocated() - _peak_of_none(job, saves)) / 2**20)
        after = _none_s(job, saves)
        none_s = (before + after) / 2
        lost.lost_pct.append(100 * (1 - none_s * saves["batches"] * saves["triggers"] / seconds))
        lost.none_step_s.append(none_s)
        lost.stalls_s += stalls
        lost.facts += facts
        before = after
        say(f"every {saves['batches']} batches: {lost.lost_pct[-1]:.2f} % lost")
    return lost


def _none_s(job: DeviceJob, saves: dict[str, Any]) -> float:
    """Return what a step takes."""
    job.train(saves["warm_steps"])
    began = time.perf_counter()
    job.train(saves["none_steps"])
    return (time.perf_counter() - began) / float(saves["none_steps"])


def _peak_of_none(job: DeviceJob, saves: dict[str, Any]) -> int:
    torch.cuda.reset_peak_memory_stats()
    job.train(saves["warm_steps"])
    return int(torch.cuda.max_memory_allocated()) - job.num_capture_bytes()


def _block(job: DeviceJob, workload: dict[str, Any], folder: Path) -> tuple[float, list[float], list[SaveFacts]]:
    """Return how long a block took, its stalls, and what each save says; the last save is waited for within it."""
    saves, run, stalls = workload["saves"], Watched(), []
    checkpointer = job.checkpointer(folder, workload, run)
    checkpointer.save(0, 0)
    run.facts.clear()
    job.train(saves["warm_steps"])
    began = time.perf_counter()
    for number in range(saves["triggers"]):
        trigger = time.perf_counter()
        checkpointer.step(number + 1, number + 1)
        stalls.append(time.perf_counter() - trigger)
        job.train(saves["batches"], is_waited_for=number == saves["triggers"] - 1)
    trigger = time.perf_counter()
    if not checkpointer.has_settled(WAIT_S):
        raise ThresholdMissed(f"a save takes more than {WAIT_S:g} s", expected="a commit")
    stalls[-1] += time.perf_counter() - trigger
    seconds = time.perf_counter() - began
    checkpointer.close()
    shutil.rmtree(folder)
    return seconds, stalls, run.facts


def check_commits(workload: dict[str, Any], folder: Path, is_cached: bool, say: Callable[[str], None]) -> int:
    """Save beside training, and compare what is restored with copies made at the boundaries; return the rows compared.

    Raises: ThresholdMissed: a bit differs, or no row changed before it was read.
    """
    check = workload["check"]
    small = workload | {"tables": workload["tables"] | {"rows": check["rows"]}}
    small |= {"train": workload["train"] | {"batches": 2 * check["saves"] * check["steps"], **check["train"]}}
    job, twin = (DeviceJob(small, is_cached=is_cached) for _ in range(2))
    run, root, expected = Watched(), folder / "check", {}
    least = {"device_staging_bytes": 32 << 20, "staging_bytes": 32 << 20, "keep_last": check["saves"] + 1}
    small |= {"saves": workload["saves"] | least}
    checkpointer = job.checkpointer(root, small, run)
    checkpointer.save(0, 0)
    run.facts.clear()
    for step in range(1, check["saves"] + 1):
        job.train(check["steps"])
        expected[step] = job.copy()
        checkpointer.step(step, step)
        job.train(check["steps"])
        checkpointer.has_settled(WAIT_S)
    checkpointer.close()
    for step, copies in expected.items():
        reader = twin.checkpointer(root, small, QuietRun())
        reader.restore(str(step))
        reader.close()
        for was, now, part in zip(copies, twin.copy(), job.parts, strict=True):
            _compare(step, part.name, was, now)
    shutil.rmtree(root)
    kept = sum(each.guard_rows or 0 for each in run.facts)
    if not kept:
        raise ThresholdMissed("no row changed before it was read, so nothing was checked", expected="rows to keep")
    rows: int = check["saves"] * sum(len(rows.ids) for rows in expected[1])
    say(
        f"{check['saves']} commits {'behind a cache ' * is_cached}hold every bit of their boundaries ({kept} rows kept)"
    )
    return rows


def _compare(step: int, table: str, was: TableRows, now: TableRows) -> None:
    same = torch.equal(was.ids, now.ids) and torch.equal(was.weights.view(torch.int32), now.weights.view(torch.int32))
    if not same or any(not torch.equal(state, now.states[name]) for name, state in was.states.items()):
        raise ThresholdMissed(f"the commit of step {step} restores other rows of {table} than its boundary had")


def _figures(found: dict[str, Lost], batches: int) -> list[Measured]:
    hbm, cached = found["hbm"], found["cached"]
    return [
        Measured(name="lost_pct_at_100_hbm", unit="%", samples=hbm.lost_pct, reason=_bound(hbm, batches)),
        Measured(name="lost_pct_at_100_cached", unit="%", samples=cached.lost_pct, reason=_bound(cached, batches)),
        Measured(name="stall_p99_steps", unit="steps", samples=_p99_steps([hbm, cached]), reason="the worse of both"),
        Measured(
            name="device_staging_mib",
            unit="MiB",
            samples=[max(lost.staging_mib) for lost in (hbm, cached)],
            reason="more device memory at its peak than without saves: the ring, the bits, and copies on their way",
        ),
    ]


def _bound(lost: Lost, batches: int) -> str:
    detail = lost.detail(batches)
    return f"{detail['saved_gb_s_wanted']} GB/s to be written, the disk writes {statistics.median(lost.disk_gb_s):.2f}"


def _p99_steps(found: Sequence[Lost]) -> list[float]:
    steps = [(lost.p99_stall_s(), statistics.median(lost.none_step_s)) for lost in found]
    told = [p99 / step_s for p99, step_s in steps if p99 is not None]
    return [max(told)] if told else []


def main() -> None:
    """For runs on a machine that is lent for a while: the device part alone."""
    import sys

    often = "--not-often" not in sys.argv
    figures, detail = device_saves_figures("--quick" in sys.argv, lambda line: print(line, flush=True), often=often)
    print(json.dumps({"figures": [[f.name, list(f.samples), f.reason] for f in figures], "detail": detail}, indent=1))


if __name__ == "__main__":
    main()
