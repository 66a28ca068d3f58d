"""The logs that `ett bench accounting` reads: a workload file's job, as its writers would have logged it."""

from __future__ import annotations

import random
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ett.event_line import encode_line
from ett.event_schema import NS

_EPOCH_NS = 1_900_000_000 * NS
_MS = NS // 1000
# The line of a step in canonical form; `encode_line` would say the same at a tenth of the speed, which a test checks.
_STEP = (
    b'{"att":%d,"b_mono":%d,"boot":"%b","c0":%d,"c1":%d,"e_mono":%d,"ev":"step","gen":0,"host":"%b","job":"bench",'
    b'"mono_ns":%d,"pid":%d,"rank":%d,"seq":%d,"src":"r%d","step":%d,"v":1,"wall_ns":%d,"world":%d}'
)


def load_workload(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


@dataclass(kw_only=True, slots=True)
class BenchWriter:
    """One process of the job; `lines` are what it has written and nobody has taken yet. Times in ns from the start."""

    rank: int | None
    attempt: int
    world: int
    host: str
    lines: list[bytes] = field(default_factory=list)
    seq: int = 0
    num_written: int = 0

    @property
    def pid(self) -> int:
        return 1000 * self.attempt + 1 + (-1 if self.rank is None else self.rank)

    @property
    def origin_ns(self) -> int:
        return 1_000 * NS * (1 + int(self.host[1:]))

    def emit(self, ev: str, at_ns: int, **fields: Any) -> None:
        src = "sup" if self.rank is None else f"r{self.rank}"
        common = {"v": 1, "job": "bench", "att": self.attempt, "gen": 0, "src": src, "host": self.host, "ev": ev}
        clock = {"seq": self.seq, "wall_ns": _EPOCH_NS + at_ns, "mono_ns": self.origin_ns + at_ns}
        rank = {} if self.rank is None else {"rank": self.rank}
        self.lines.append(encode_line(common | clock | rank | {"boot": f"boot-{self.host}", "pid": self.pid} | fields))
        self.seq += 1

    def emit_step(self, number: int, begin_ns: int, end_ns: int, cursor: int, samples: int) -> None:
        at_ns, origin_ns = end_ns + 20_000, self.origin_ns
        rank = 0 if self.rank is None else self.rank
        values = (
            self.attempt, origin_ns + begin_ns, b"boot-" + self.host.encode(), cursor, cursor + samples,
            origin_ns + end_ns, self.host.encode(), origin_ns + at_ns, self.pid, rank, self.seq, rank, number,
            _EPOCH_NS + at_ns, self.world,
        )  # fmt: skip
        body = _STEP % values
        self.lines.append(b"%b\t%08x\n" % (body, zlib.crc32(body)))
        self.seq += 1

    def emit_span(self, name: str, span_id: int, begin_ns: int, end_ns: int) -> None:
        self.emit("span_begin", begin_ns, id=span_id, name=name, blocking=True)
        self.emit("span_end", end_ns, id=span_id, name=name, blocking=True)


class BenchJob:
    """Attempts with failures and replays, spans, commits and heartbeats; deterministic."""

    def __init__(self, workload: Mapping[str, Any], *, records: int) -> None:
        self._workload, self._random = workload, random.Random(7)
        self._per_rank = records // len(workload["attempts"]) // workload["log"]["ranks"]
        self._supervisor = BenchWriter(rank=None, attempt=0, world=0, host="h0")

    def write(self, events: Path) -> int:
        """Write the log under `events`; return how many records it has."""
        total = 0
        files: dict[int, BinaryIO] = {}
        limit = self._workload["log"]["file_mib"] << 20
        for writer in self._writers():
            if writer.pid not in files:
                source = "sup" if writer.rank is None else f"r{writer.rank}"
                folder = events / str(0 if writer.rank is None else writer.attempt)
                folder.mkdir(parents=True, exist_ok=True)
                name = f"{source}-{writer.host}-{writer.pid}.{writer.num_written}.jsonl"
                files[writer.pid] = (folder / name).open("wb", buffering=0)
            file = files[writer.pid]
            file.write(b"".join(writer.lines))
            total += len(writer.lines)
            writer.num_written += len(writer.lines)
            writer.lines.clear()
            if file.tell() > limit:  # a new file numbers its records from 0
                files.pop(writer.pid).close()
                writer.seq = 0
        for file in files.values():
            file.close()
        return total

    def _writers(self) -> Iterator[BenchWriter]:
        """Yield writers whose lines are to be put into their files."""
        workload, supervisor = self._workload, self._supervisor
        samples, log = workload["step"]["samples"], workload["log"]
        now, number = 3 * NS, 0
        supervisor.emit("job_submitted", 0, team="bench", owner="bench", model="bench")
        for attempt, plan in enumerate(workload["attempts"], start=1):
            supervisor.emit("allocated", now, att=attempt, nodes=1)
            supervisor.emit("attempt_started", now + NS, att=attempt, world=log["ranks"], nodes=1)
            ranks = [
                BenchWriter(rank=r, attempt=attempt, world=log["ranks"], host=f"h{1 + r // log['ranks_per_host']}")
                for r in range(log["ranks"])
            ]
            now = self._start(ranks, now + 2 * NS, cursor=number * samples, is_restart=attempt > 1)
            committed = number
            while ranks[0].num_written < self._per_rank:
                now, number, committed = self._block(ranks, now, number, committed)
                yield from ranks
            if plan["in_flight"]:
                for rank in ranks:
                    rank.emit("step_begin", now, step=number, c0=number * samples)
                now += workload["step"]["ms"] // 2 * _MS
            else:
                for rank in ranks:
                    rank.emit("train_end", now, step=number)
                now += 2 * NS
            yield from ranks
            supervisor.emit("attempt_ended", now, att=attempt, reason=plan["reason"], **{"class": "infra"})
            yield supervisor
            now += 10 * NS
            number = committed
        supervisor.emit("job_ended", now, status="succeeded")
        yield supervisor

    def _start(self, ranks: list[BenchWriter], now: int, *, cursor: int, is_restart: bool) -> int:
        for rank in ranks:
            begin_ns = now
            rank.emit("proc_start", now, parent_wall_ns=_EPOCH_NS + now, world=rank.world)
            for name, ms in self._workload["start_up_ms"].items():
                rank.emit_span(name, rank.seq, begin_ns, begin_ns + ms * _MS)
                begin_ns += ms * _MS
        if is_restart:
            ranks[0].emit("restore", begin_ns, id="c", cursor=cursor, scope="full", verified=True)
        return begin_ns

    def _block(self, ranks: list[BenchWriter], now: int, number: int, committed: int) -> tuple[int, int, int]:
        """A hundred steps or so of every rank, as one write."""
        step, every, span_ms = self._workload["step"], self._workload["every"], self._workload["span_ms"]
        samples, jitter_ns = step["samples"], step["jitter_ms"] * _MS
        length_ns, gap_ns, draw = step["ms"] * _MS, step["gap_ms"] * _MS, self._random.random
        for _ in range(100):
            for rank in ranks:
                begin_ns = now + int(draw() * jitter_ns)
                rank.emit_step(number, begin_ns, now + length_ns - int(draw() * jitter_ns), number * samples, samples)
            number += 1
            end_ns = now + length_ns
            for name in ("data_stall", "ckpt_save", "eval"):
                if number % every[name] == 0:
                    until_ns = end_ns + span_ms[name] * _MS
                    for rank in ranks:
                        rank.emit_span(name, rank.seq, end_ns, until_ns)
                    end_ns = until_ns
            if number % every["ckpt_save"] == 0:
                committed = number
                ranks[0].emit(
                    "ckpt_commit", end_ns, id=f"c{number}", cursor=number * samples, step=number, tier="remote"
                )
            if number % every["heartbeat"] == 0:
                for rank in ranks:
                    rank.emit("heartbeat", end_ns, step=number, dropped=0)
            now = end_ns + gap_ns
        return now, number, committed
