"""Blocks of training under a policy, each between two blocks of training without checkpoints."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ett.checkpoint.bench.bench_disk import Disk
from ett.checkpoint.bench.spent import Spent
from ett.checkpoint.save_facts import SaveFacts
from ett.trainer.bench.policy_job import PolicyJob
from ett.trainer.bench.policy_savers import NoSaves, Saver

LEAST_TRIGGERS = 100  # from which on the 99th percentile of them is told


@dataclass(frozen=True, slots=True)
class Block:
    """Some steps; stalls_s: of training's time at each step boundary with a save, the waits for it included."""

    num_steps: int
    seconds: float
    cpu_s: float
    stalls_s: Sequence[float] = ()
    facts: Sequence[SaveFacts] = ()

    @property
    def step_s(self) -> float:
        return self.seconds / self.num_steps


@dataclass(slots=True)
class Measured:
    """What a policy did at one interval: its blocks, the mean of the blocks of none beside each."""

    blocks: list[Block] = field(default_factory=list)
    none_s: list[float] = field(default_factory=list)  # of a step
    none_cpu_s: list[float] = field(default_factory=list)  # of a step
    disk_mb_s: list[float] = field(default_factory=list)
    restores: list[Spent] = field(default_factory=list)

    @property
    def lost_pct(self) -> list[float]:
        """Return the throughput lost in each block."""
        return [100 * (1 - none / block.step_s) for block, none in zip(self.blocks, self.none_s, strict=True)]

    @property
    def stalls_s(self) -> list[float]:
        return [stall for block in self.blocks for stall in block.stalls_s]

    @property
    def facts(self) -> list[SaveFacts]:
        return [facts for block in self.blocks for facts in block.facts]

    def p99_stall_s(self) -> float | None:
        """Return None for too few triggers."""
        stalls = self.stalls_s
        return statistics.quantiles(stalls, n=100)[-1] if len(stalls) >= LEAST_TRIGGERS else None

    def guard_share(self) -> float | None:
        """Return which share of the rows that were captured the guard took; None: none were captured."""
        ways = ("prefetch_rows", "sweep_rows", "guard_rows")
        counts = {way: sum(getattr(facts, way) or 0 for facts in self.facts) for way in ways}
        return counts["guard_rows"] / sum(counts.values()) if any(counts.values()) else None


class Blocks:
    """Runs blocks in a folder of the disk that is measured."""

    def __init__(self, job: PolicyJob, twin: PolicyJob, folder: Path, workload: Mapping[str, Any]) -> None:
        self._job, self._twin, self._folder = job, twin, folder
        self._warm_up = workload["warm_up"]
        self._disk = Disk(folder / "disk", workload["disk_bytes"])

    def of_interval(
        self, interval: Mapping[str, Any], savers: Sequence[Saver], say: Callable[[str], None]
    ) -> dict[str, Measured]:
        """Run every policy's blocks at one interval, in turn.

        Args: interval: `batches` between two saves, `triggers` and `blocks` of a policy, others for those named in
            `longer`, `none` steps of a block without.
        """
        found = {saver.name: Measured() for saver in savers}
        longer = interval.get("longer", {})
        rounds = {saver.name: {**interval, **longer.get(saver.name, {})} for saver in savers}
        before = self._none(interval["none"])
        for number in range(max(each["blocks"] for each in rounds.values())):
            for saver in savers:
                if number >= rounds[saver.name]["blocks"]:
                    continue
                is_last = number == rounds[saver.name]["blocks"] - 1
                measured = found[saver.name]
                measured.disk_mb_s.append(self._disk_mb_s())
                measured.blocks.append(self._block(saver, rounds[saver.name], measured.restores if is_last else None))
                after = self._none(interval["none"])
                measured.none_s.append((before.step_s + after.step_s) / 2)
                measured.none_cpu_s.append((before.cpu_s + after.cpu_s) / (before.num_steps + after.num_steps))
                before = after
                say(f"every {interval['batches']} batches, {saver.name}: {measured.lost_pct[-1]:.1f} % lost")
        return found

    def _none(self, num_steps: int) -> Block:
        return self._trained(NoSaves(), num_steps, 1)

    def _block(self, saver: Saver, sizes: Mapping[str, Any], restores: list[Spent] | None) -> Block:
        folder = self._folder / saver.name
        folder.mkdir()
        saver.begin(folder)
        block = self._trained(saver, sizes["batches"], sizes["triggers"])
        facts = saver.end()
        if restores is not None:
            restores.append(saver.restore(self._twin))
        shutil.rmtree(folder)
        return Block(block.num_steps, block.seconds, block.cpu_s, block.stalls_s, facts)

    def _trained(self, saver: Saver, interval: int, num_triggers: int) -> Block:
        """Begin each interval with a save. What the last one takes beyond its interval is its stall."""
        stalls = []
        self._job.begin(self._warm_up + interval * num_triggers)
        self._job.train(self._warm_up)
        cpu, began = time.process_time(), time.perf_counter()
        for number in range(num_triggers):
            stalls.append(_seconds(partial(saver.trigger, self._warm_up + number * interval)))
            self._job.train(interval)
        stalls[-1] += _seconds(saver.settle)
        seconds = time.perf_counter() - began
        cpu_s = time.process_time() - cpu
        self._job.end()
        return Block(interval * num_triggers, seconds, cpu_s, stalls)

    def _disk_mb_s(self) -> float:
        seconds = self._disk.write_s("direct")
        self._disk.remove()
        return self._disk.num_bytes / 1e6 / seconds


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
