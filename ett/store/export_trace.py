"""A job's account as a Chrome trace (JSON), which Perfetto shows: bounded in size, and nested in every track.

Tracks: where the job's time went; then for each attempt and rank its steps, its blocking spans, and what ran beside
training (asynchronous checkpoint work). Times are exact: microseconds with three decimals since the first event.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import NS, Record
from ett.explain import intervals
from ett.piece_sums import begins, measure_each
from ett.rank_spans import rank_spans
from ett.rank_timeline import Piece
from ett.report_text import duration
from ett.step_credit import StepMark

_MAX_NAME = 200
_HEADROOM = 1.15  # merged events have longer names and more args than those they replace


class Slice(NamedTuple):
    begin_ns: int
    end_ns: int
    name: str
    category: str
    args: dict[str, Any]


@dataclass(kw_only=True, slots=True)
class Track:
    """Slices by begin. `is_flat`: they follow each other, and neighbours may be merged into one; else they may nest."""

    process: str
    thread: str
    slices: list[Slice]
    is_flat: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    lines: Sequence[bytes]
    num_events: int
    notes: tuple[str, ...]  # what was merged or left out so that it fits


def trace_of(accounts: Sequence[JobAccount], max_bytes: int) -> Trace:
    """Return the trace of the jobs, of at most `max_bytes` unless the bare frame of it is larger."""
    # A slice takes 95 bytes at least, one of many about 200: what surely does not fit is not made first.
    num_all = sum(_num_slices(account) for account in accounts)
    first = merged = 1 if num_all * 95 <= max_bytes else -(-num_all * 200 // max(1, max_bytes))
    tracks = [lane for account in accounts for track in _tracks(account, merged) for lane in _lanes(track)]
    origin_ns = min((s.begin_ns for track in tracks for s in track.slices), default=0)
    fitted = tracks
    while True:
        notes = _notes(num_all, sum(len(track.slices) for track in fitted), merged, max_bytes)
        lines = _lines(fitted, origin_ns, notes)
        size = sum(map(len, lines))
        longest = max((len(track.slices) for track in fitted), default=0)
        if size <= max_bytes or longest <= 1:
            return Trace(lines=lines, num_events=sum(len(t.slices) for t in fitted), notes=tuple(notes))
        merged = max(merged + 1, int(merged * size / max_bytes * _HEADROOM) + 1)
        fitted = [_thinned(track, -(-merged // first)) for track in tracks]


def _num_slices(account: JobAccount) -> int:
    return len(account.pieces) + sum(1 for timeline in account.timelines for _ in timeline.step_marks())


def _tracks(account: JobAccount, merged: int) -> Iterator[Track]:
    """Yield the tracks of a job; of flat ones, `merged` neighbours are one slice already."""
    job = account.job or "job"
    where = _intervals(account) if merged == 1 else _merged_pieces(account.pieces, merged)
    yield Track(process=job, thread="where the time went", slices=where, is_flat=True)
    attempts = [t for t in account.timelines if t.pieces]
    lives = [_attempt_slice(timeline) for timeline in attempts]
    yield Track(process=job, thread="attempts", slices=lives, is_flat=False)
    for timeline in attempts:
        process = f"{job} attempt {timeline.attempt.number}"
        by_rank: dict[int, list[StepMark]] = {}
        for step in timeline.step_marks():
            by_rank.setdefault(step.rank, []).append(step)
        for rank, steps in sorted(by_rank.items()):
            groups = (steps[i : i + merged] for i in range(0, len(steps), merged))
            slices = [_step_slice(group[0]) if len(group) == 1 else _merged_steps(group) for group in groups]
            yield Track(process=process, thread=f"rank {rank} steps", slices=slices, is_flat=True)
        yield from _span_tracks(timeline, process)


def _attempt_slice(timeline: AttemptTimeline) -> Slice:
    attempt = timeline.attempt
    args = {"reason": attempt.reason or "", "world": attempt.world}
    return Slice(timeline.pieces[0].begin_ns, timeline.pieces[-1].end_ns, f"attempt {attempt.number}", "attempt", args)


def _intervals(account: JobAccount) -> list[Slice]:
    return [
        Slice(i.begin_ns, i.end_ns, f"{i.component}.{i.reason}", i.component, {"rule": i.rule, "evidence": i.evidence})
        for i in intervals(account.pieces)
    ]


def _merged_pieces(pieces: Sequence[Piece], merged: int) -> list[Slice]:
    edges = [*islice(begins(pieces), 0, None, merged), *([pieces[-1].end_ns] if pieces else [])]
    found = []
    for (begin_ns, end_ns), spent in zip(pairwise(edges), measure_each(pieces, list(pairwise(edges))), strict=True):
        named = Counter({f"{component}.{reason}": ns for (component, reason), ns in sorted(spent.items())})
        most = max(named, key=lambda name: named[name], default="job")
        found.append(_summed(begin_ns, end_ns, merged, named, most.split(".")[0]))
    return found


def _step_slice(step: StepMark) -> Slice:
    end_ns = max(step.begin_ns, min(step.end_ns, step.stop_ns))
    args = {"c0": step.c0, "c1": step.c1, "complete": step.is_complete}
    return Slice(step.begin_ns, end_ns, f"step {step.number}", "step", args)


def _merged_steps(group: Sequence[StepMark]) -> Slice:
    ends = [max(step.begin_ns, min(step.end_ns, step.stop_ns)) for step in group]
    spent_ns = sum(end_ns - step.begin_ns for end_ns, step in zip(ends, group, strict=True))
    name = f"step {group[0].number} to step {group[-1].number}"
    return Slice(group[0].begin_ns, max(ends), name, "step", {"merged": len(group), "step_s": spent_ns / NS})


def _span_tracks(timeline: AttemptTimeline, process: str) -> Iterator[Track]:
    faults = [time_ns for time_ns, _ in timeline.faults]
    by_rank: dict[int, list[Any]] = {}
    for item in timeline.records():
        record: Record = item.record
        if record.rank is not None and not record.is_supervisors and record.ev in ("span_begin", "span_end"):
            by_rank.setdefault(record.rank, []).append(item)
    for rank, records in sorted(by_rank.items()):
        spans = rank_spans(records, faults, timeline.attempt.end_ns)
        for thread, is_blocking in ((f"rank {rank} spans", True), (f"rank {rank} beside training", False)):
            slices = [
                Slice(s.begin_ns, s.end_ns, s.name[:_MAX_NAME], s.known_component or "span", {"closed": s.was_closed})
                for s in spans
                if s.is_blocking == is_blocking
            ]
            if slices:
                yield Track(process=process, thread=thread, slices=slices, is_flat=False)


def _lanes(track: Track) -> Iterator[Track]:
    """Split a track so that slices of a lane nest (or, in a flat track, follow each other): none is cut or moved."""
    lanes: list[list[Slice]] = []
    open_ends: list[list[int]] = []  # of each lane: where the slices that hold the current place end, outermost first
    for item in sorted(track.slices, key=lambda s: (s.begin_ns, -s.end_ns)):
        for lane, ends in zip(lanes, open_ends, strict=True):
            while ends and ends[-1] <= item.begin_ns:
                ends.pop()
            if not ends or (not track.is_flat and item.end_ns <= ends[-1]):
                lane.append(item)
                ends.append(item.end_ns)
                break
        else:
            lanes.append([item])
            open_ends.append([item.end_ns])
    for number, lane in enumerate(lanes):
        thread = f"{track.thread} ({number + 1})" if number else track.thread
        yield Track(process=track.process, thread=thread, slices=lane, is_flat=track.is_flat)


def _thinned(track: Track, merged: int) -> Track:
    """A flat track: every `merged` neighbours become one. A nested one: its longest slices stay, which still nest."""
    slices = track.slices
    if track.is_flat:
        groups = (slices[i : i + merged] for i in range(0, len(slices), merged))
        slices = [_merged(group) for group in groups]
    else:
        kept = max(1, len(slices) // merged)
        longest = sorted(range(len(slices)), key=lambda i: slices[i].begin_ns - slices[i].end_ns)[:kept]
        slices = [slices[i] for i in sorted(longest)]
    return Track(process=track.process, thread=track.thread, slices=slices, is_flat=track.is_flat)


def _merged(group: Sequence[Slice]) -> Slice:
    if len(group) == 1:
        return group[0]
    first, last = group[0], group[-1]
    spent: Counter[str] = Counter()
    for item in group:
        spent[item.category if item.category == "step" else item.name] += item.end_ns - item.begin_ns
    if spent.most_common(1)[0][0] == "step":
        name = f"{first.name.split(' to ')[0]} to {last.name.rpartition(' to ')[2]}"
        num_merged = sum(item.args.get("merged", 1) for item in group)
        args = {"merged": num_merged, "step_s": spent["step"] / NS}
        return Slice(first.begin_ns, max(s.end_ns for s in group), name, first.category, args)
    return _summed(first.begin_ns, max(s.end_ns for s in group), len(group), spent, first.category)


def _summed(begin_ns: int, end_ns: int, num_merged: int, spent: Counter[str], category: str) -> Slice:
    most = spent.most_common(1)[0][0] if spent else "nothing"
    args = {"merged": num_merged} | {f"{what}_s": ns / NS for what, ns in spent.most_common(6)}
    return Slice(begin_ns, end_ns, f"mostly {most}", category, args)


def _notes(num_all: int, num_kept: int, merged: int, max_bytes: int) -> list[str]:
    if merged == 1:
        return []
    return [
        f"{num_all} slices were more than {max_bytes} bytes hold: up to {merged} neighbouring steps became one, and of "
        f"spans the longest were kept; {num_kept} slices are left (--max-bytes changes that)"
    ]


def _lines(tracks: Sequence[Track], origin_ns: int, notes: Sequence[str]) -> list[bytes]:
    processes: dict[str, int] = {}
    lines: list[bytes] = []
    for tid, track in enumerate(tracks, start=1):
        is_new = track.process not in processes
        pid = processes.setdefault(track.process, len(processes) + 1)
        if is_new:
            lines.append(_metadata("process_name", pid, 0, {"name": track.process}))
            lines.append(_metadata("process_sort_index", pid, 0, {"sort_index": pid}))
        lines.append(_metadata("thread_name", pid, tid, {"name": track.thread}))
        lines.append(_metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
        lines += [_event(item, pid, tid, origin_ns) for item in track.slices]
    other = {"origin_unix_ns": str(origin_ns), "notes": list(notes), "written_by": "ett export"}
    head = b'{"displayTimeUnit":"ms","otherData":%b,"traceEvents":[\n' % json.dumps(other).encode()
    return [head, *(line + b",\n" for line in lines[:-1]), *(line + b"\n" for line in lines[-1:]), b"]}\n"]


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> bytes:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}, separators=(",", ":")).encode()


def _event(item: Slice, pid: int, tid: int, origin_ns: int) -> bytes:
    rest = json.dumps(
        {"name": item.name, "cat": item.category, "args": {"took": duration(item.end_ns - item.begin_ns)} | item.args},
        separators=(",", ":"),
    )
    ts, dur = _microseconds(item.begin_ns - origin_ns), _microseconds(item.end_ns - item.begin_ns)
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},{rest[1:]}'.encode()


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"
