"""What a job's log says about its lives so far; a supervisor keeps no truth of its own and reads this instead.

Reads every record of supervisors, and of the ranks' files the commits only: those files hold a record a step.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ett.event_reader import parse_file
from ett.event_schema import NS, Record
from ett.restart import AttemptFacts

_TAIL_BYTES = 65_536
_STEP = b'"ev":"step"'


@dataclass(frozen=True, kw_only=True, slots=True)
class JobHistory:
    is_submitted: bool
    submitted_wall_ns: int | None = None
    status: str  # of the newest job_ended after the last attempt's start: succeeded, failed, cancelled; else ""
    is_complete: bool  # the last attempt completed, whether or not its supervisor lived to end the job
    last_attempt: int  # 0 before the first
    open_attempts: tuple[int, ...]  # allocated or started, and nobody wrote their end
    places: Mapping[int, tuple[str, str]]  # host and boot of the supervisor that began each attempt
    ended: tuple[AttemptFacts, ...]  # in order; a generation that another one followed in its attempt is one as well
    committed_attempts: frozenset[int]  # that made a commit
    fruitful: frozenset[tuple[int, int]]  # attempts and generations that committed a cursor beyond all earlier ones

    def lost_cause(self, attempt: int, host: str, boot: str) -> str:
        """Return why nobody wrote that attempt's end, as somebody on that boot of a host can tell; "" where not."""
        place = self.places.get(attempt)
        if place is None or place[0] != host:
            return ""
        return "supervisor_lost" if place[1] == boot else "host_restarted"

    def since(self, attempt: int) -> tuple[AttemptFacts, ...]:
        """Return the ended attempts from that number on."""
        return tuple(facts for facts in self.ended if facts.attempt >= attempt)


def read_history(events: Path) -> JobHistory:
    """Replay the log under `events/`; an empty history where there is none.

    Raises: CorruptState: a record of a newer schema version.
    """
    return build_history(read_supervisors(events), records_of(events, "ckpt_commit"))


def read_supervisors(events: Path) -> list[Record]:
    """Return every record of supervisors, in order of time. Raises: as `read_history`."""
    supervisors: list[Record] = []
    for path in sorted(events.glob("0/sup-*.jsonl")):
        supervisors += parse_file(path.name, path.read_bytes()).records
    supervisors.sort(key=lambda record: (record.wall_ns, record.seq))
    return supervisors


def build_history(supervisors: Iterable[Record], commits: Iterable[Record]) -> JobHistory:
    """Return the history of the supervisors' records, in order of time, and of the ranks' commits."""
    started: dict[int, Record] = {}
    ended: dict[int, Record] = {}
    faults: dict[tuple[int, int], Record] = {}  # by attempt and generation
    lives: dict[tuple[int, int], Record] = {}
    is_submitted, submitted_wall_ns, status = False, None, ""
    for record in supervisors:
        if record.ev == "job_submitted":
            is_submitted, submitted_wall_ns = True, submitted_wall_ns or record.wall_ns
        elif record.ev in ("allocated", "attempt_started"):
            # Allocated is begun: its supervisor may have died before it could start anything.
            started[record.att] = record
            status = ""
        elif record.ev == "attempt_ended":
            ended.setdefault(record.att, record)
            if not _is_known_loss(record, lives):
                lives.setdefault((record.att, record.gen), record)
        elif record.ev == "fault":
            faults.setdefault((record.att, record.gen), record)
        elif record.ev == "restart_decision" and record.data.get("scope") == "inprocess":
            fault = faults.get((record.att, record.gen))
            if fault is not None:
                lives.setdefault((record.att, record.gen), fault)
        elif record.ev == "job_ended":
            status = str(record.data.get("status", ""))
    fruitful, committed = _fruitful_attempts(commits)
    last = max([0, *started, *ended])
    return JobHistory(
        is_submitted=is_submitted,
        submitted_wall_ns=submitted_wall_ns,
        status=status,
        is_complete=last in ended and ended[last].data.get("reason") == "completed",
        last_attempt=last,
        open_attempts=tuple(sorted(set(started) - set(ended))),
        places={number: (record.host, record.boot) for number, record in started.items()},
        ended=tuple(_facts(lives[key], ended.get(key[0]), key in fruitful) for key in sorted(lives)),
        fruitful=frozenset(fruitful),
        committed_attempts=frozenset(attempt for attempt, _ in committed),
    )


def last_step(events: Path, attempt: int, rank: int) -> int | None:
    """Return the last completed step that a rank wrote down at the end of its log; None where there is none."""
    return max((record.data["step"] for record in _last_steps(events, attempt, rank)), default=None)


def _last_steps(events: Path, attempt: int, rank: int) -> list[Record]:
    """Return the steps at the ends of a rank's files: it has one for each of its processes and generations."""
    steps: list[Record] = []
    for path in events.glob(f"{attempt}/r{rank}-*.jsonl"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            _, _, lines = (b"\n" + file.read() if file.tell() == 0 else file.read()).partition(b"\n")
        steps += [record for record in parse_file(path.name, lines).records if record.ev == "step"]
    return steps


@dataclass(frozen=True, slots=True)
class SavedSteps:
    step: int  # of the newest commit of an attempt, or of the one that it went on from
    num_unsaved: int  # steps that rank 0 completed after it, in the attempt's newest generation


def saved_steps(events: Path, attempt: int) -> SavedSteps | None:
    """Return what of an attempt was saved, as far as rank 0 wrote that down; None where there is no commit of it."""
    found = [*records_of(events, "ckpt_commit", "r0-*"), *records_of(events, "restore", "r0-*")]
    saved = [record for record in found if record.att == attempt and type(record.data.get("step")) is int]
    if not saved:
        return None
    newest = max(saved, key=lambda record: (record.gen, record.ev == "ckpt_commit", record.data["step"]))
    steps = _last_steps(events, attempt, 0)
    newest_gen = max(record.gen for record in (newest, *steps))
    last = max((record.data["step"] for record in steps if record.gen == newest_gen), default=0)
    return SavedSteps(newest.data["step"], max(0, last - newest.data["step"]))


def has_stepped(events: Path, attempt: int, pid: int) -> bool:
    """Return whether that process completed a step, as far as it wrote that down."""
    paths = events.glob(f"{attempt}/r*-{pid}-*.jsonl")
    return any(next(_lines_with(_STEP, path), None) is not None for path in paths)


def records_of(events: Path, ev: str, sources: str = "*") -> list[Record]:
    """Return the records of one kind in the ranks' files, without reading the others; sources: which files, a glob.

    Raises: as `read_history`.
    """
    found: list[Record] = []
    for path in sorted(events.glob(f"[1-9]*/{sources}.jsonl")):
        lines = b"".join(_lines_with(b'"ev":"%b"' % ev.encode(), path))
        found += [record for record in parse_file(path.name, lines).records if record.ev == ev]
    return found


def has_trained(events: Path, attempt: int) -> bool:
    """Return whether rank 0 completed a step in that attempt, as far as it wrote that down."""
    paths = events.glob(f"{attempt}/r0-*.jsonl")
    return any(next(_lines_with(_STEP, path), None) is not None for path in paths)


def last_sign_of_life(events: Path, attempt: int) -> float | None:
    """Return when rank 0's log of that attempt was last written to, in Unix seconds; None where it has none."""
    return max((path.stat().st_mtime for path in events.glob(f"{attempt}/r0-*.jsonl")), default=None)


def _fruitful_attempts(commits: Iterable[Record]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the generations that committed a cursor beyond all earlier ones, and those that committed at all."""
    cursors: dict[tuple[int, int], float] = {}
    for record in commits:
        key = (record.att, record.gen)
        cursors[key] = max(record.data["cursor"], cursors.get(key, -1))
    fruitful: set[tuple[int, int]] = set()
    highest = -1.0
    for key in sorted(cursors):
        if cursors[key] > highest:
            fruitful.add(key)
            highest = cursors[key]
    return fruitful, set(cursors)


def _is_known_loss(end: Record, lives: Mapping[tuple[int, int], Record]) -> bool:
    """Return whether the process whose failure ended an attempt had been lost before: others did not live on."""
    pid = end.data.get("worker_pid", 0)
    return bool(pid) and any((life.att, life.data.get("worker_pid")) == (end.att, pid) for life in lives.values())


def _facts(record: Record, end: Record | None, has_new_commit: bool) -> AttemptFacts:
    """Args: end: of the record's attempt, where somebody wrote that."""
    return AttemptFacts(
        attempt=record.att,
        gen=record.gen,
        job=record.job,
        ended_unix_s=record.wall_ns / NS,
        reason=str(record.data.get("reason", "failed")),
        failure_class=str(record.data.get("class", "unknown")),
        signature=str(record.data.get("signature", "")),
        is_final=record.data.get("final") is True,
        is_unkillable=end is not None and bool(end.data.get("unkillable")),
        local_rank=record.data.get("local_rank"),
        shrinks_to=record.data.get("shrinks_to"),
        pid=int(record.data.get("worker_pid", 0)),
        has_stepped=record.data.get("has_stepped") is True,
        has_new_commit=has_new_commit,
    )


def _lines_with(text: bytes, path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file that hold text; a search, not a loop over lines: a restart waits for it."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            place = data.find(text)
            while place >= 0:
                end = data.find(b"\n", place) + 1
                if not end:
                    return  # a torn last line
                yield data[data.rfind(b"\n", 0, place) + 1 : end]
                place = data.find(text, end)
