"""A running job of many ranks, asked for its account while records arrive; a part of `ett bench accounting`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ett.accounting import account
from ett.errors import CorruptState
from ett.event_reader import EventLog
from ett.event_schema import NS, Record
from ett.live_account import LiveAccount
from ett.report import build_report

_START_NS = 1_900_000_000 * NS
_STEP_NS, _JITTER_NS = 400_000_000, 20_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveQueries:
    slowest_ms: list[float]  # of each round
    num_queries: int  # a round
    detail: dict[str, Any]


@dataclass(kw_only=True, slots=True)
class _Job:
    """Records of a job of `ranks` in the order in which they arrive; times and jitter follow from the seed."""

    ranks: int
    heartbeat_every: int
    seqs: dict[int, int] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(3))

    def record(self, ev: str, at_ns: int, rank: int | None, **data: Any) -> Record:
        number = -1 if rank is None else rank
        seq = self.seqs[number] = self.seqs.get(number, -1) + 1
        src, host = ("sup", "h0") if rank is None else (f"r{rank}", f"h{rank // 8}")
        file = f"{0 if rank is None else 1}/{src}.jsonl"
        att = 0 if ev == "job_submitted" else 1
        return Record(
            ev, "live", att, 0, src, rank, host, f"b-{host}", number + 2, seq, _START_NS + at_ns, at_ns, file, data
        )

    def start(self) -> Iterator[Record]:
        yield self.record("job_submitted", 0, None)
        yield self.record("attempt_started", NS, None, world=self.ranks)
        for rank in range(self.ranks):
            yield self.record("proc_start", 2 * NS, rank, parent_wall_ns=_START_NS + 2 * NS)
            yield self.record("span_begin", 2 * NS, rank, id=0, name="imports", blocking=True)
            yield self.record("span_end", 9 * NS, rank, id=0, name="imports", blocking=True)

    def step(self, number: int) -> list[Record]:
        """All ranks' records of one step, in the order in which they are written."""
        begin_ns = 10 * NS + number * _STEP_NS
        found = []
        for rank in range(self.ranks):
            own_ns = begin_ns + self.rng.randrange(_JITTER_NS)
            end_ns = begin_ns + _STEP_NS - self.rng.randrange(1, _JITTER_NS)
            cursor = {"c0": number * self.ranks, "c1": (number + 1) * self.ranks}
            ends = {"b_mono": own_ns, "e_mono": end_ns, "world": self.ranks}
            found.append(self.record("step", end_ns, rank, step=number, **ends, **cursor))
            if number % self.heartbeat_every == 0:
                found.append(self.record("heartbeat", end_ns, rank, step=number, dropped=0))
        if number % 50 == 49:
            found.append(
                self.record("ckpt_commit", begin_ns + _STEP_NS, 0, id=f"c{number}", cursor=(number + 1) * self.ranks)
            )
        return sorted(found, key=lambda record: record.mono_ns)


def live_query_ms(workload: Mapping[str, Any], *, rounds: int) -> LiveQueries:
    """Ask a job that runs; each answer is account and report.

    Raises: CorruptState: an answer differs from that of the whole log.
    """
    job = _Job(ranks=workload["ranks"], heartbeat_every=workload["heartbeat_every"])
    live, known = LiveAccount(), []
    for record in chain(job.start(), *(job.step(number) for number in range(workload["steps_before"]))):
        known.append(record)
        live.add(record)
    first_ms = _ask(live, known[-1].mono_ns)
    slowest, number, took_ms = [], workload["steps_before"], []
    checks = workload["checked_questions"]
    for _ in range(rounds):
        asked: list[float] = []
        for _ in range(workload["steps_asked"]):
            records = job.step(number)
            number += 1
            size = -(-len(records) // workload["questions_a_step"])
            for at in range(0, len(records), size):
                for record in records[at : at + size]:
                    live.add(record)
                known += records[at : at + size]
                asked.append(_ask(live, known[-1].mono_ns))
        slowest.append(max(asked))
        took_ms += asked
        if checks:
            checks -= 1
            _check(live, known)
    detail = {
        "records": len(known),
        "first_question_ms": round(first_ms, 1),
        "median_ms": round(sorted(took_ms)[len(took_ms) // 2], 1),
    }
    num_queries = workload["steps_asked"] * workload["questions_a_step"]
    return LiveQueries(slowest_ms=slowest, num_queries=num_queries, detail=detail)


def _ask(live: LiveAccount, now_ns: int) -> float:
    begin_s = time.perf_counter()
    found = live.account(_START_NS + now_ns)
    assert found is not None, "the job was submitted"
    build_report(found)
    return (time.perf_counter() - begin_s) * 1000


def _check(live: LiveAccount, known: list[Record]) -> None:
    now_ns = _START_NS + known[-1].mono_ns
    whole = account(_columns(known), as_of_ns=now_ns, cut_at_as_of=False)
    found = live.account(now_ns)
    if found is None or whole is None or build_report(found) != build_report(whole):
        raise CorruptState("the live account differs from that of the whole log", expected="the same", do="report this")


def _columns(records: list[Record]) -> EventLog:
    from ett.log_columns import LogColumns

    columns = LogColumns()
    for record in records:
        columns.add(record)
    return EventLog(columns=columns)
