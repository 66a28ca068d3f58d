"""One job's account -> what its metrics are made of: a pure function, and the only place that decides it.

Seconds come from `ett.attribution`, like those of `ett report`. A running job is counted up to where nothing more is
expected to change; only what arrives late after that is a revision.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from ett import metric_names as names
from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.attribution import attribute, kept_time
from ett.collector.job_moments import Moment, moments_of
from ett.event_schema import NS
from ett.interval_set import Interval, length, measure, union
from ett.job_state import state_of
from ett.recompilations import recompilations
from ett.report import world_of
from ett.site import Site

Key = tuple[str, ...]  # a metric's Prometheus name, then the values of its labels but cluster, team and model

# A step, an open span or a silent rank may change its meaning when it ends. After this long it is published as what it
# looks like, and revised later: a job that hangs must not vanish from the fleet's seconds.
SETTLE_NS = 600 * NS
# Between attempts the next record, an allocation, is at most a heartbeat and a flush away.
QUEUE_LAG_NS = 20 * NS
OTHER = "other"
PHASES = frozenset(
    {
        *("queue", "restart", "preempted", "suspended", "job_end"),
        *("provision", "imports", "device_init", "process_group", "model_build", "data_warmup", "restore"),
        *("inprocess_restart", "elastic_reconfig", "init", "untracked"),
        *("compile", "inferred"),
        *("replay", "in_flight", "unsaved_tail", "cursor_unknown", "ckpt_save", "eval", "data_stall"),
        *("final_save", "final_wait", "publish_final", "teardown"),
    }
)


class ModelState(NamedTuple):
    """What gauges say of a running job. Times in Unix nanoseconds; None: nothing committed yet."""

    last_commit_ns: int | None
    interval_ns: int | None
    at_risk_rank_ns: int
    ranks: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFigures:
    """`amounts` follow the account and may be revised; each of `moments` is observed once, when it is first known."""

    is_submitted: bool = False  # whose job it is, is known
    team: str = ""
    model: str = ""
    state: str = "queued"
    is_open: bool = True  # time alone can change what is said of it
    amounts: Mapping[Key, int] = field(default_factory=dict)
    moments: Mapping[str, Sequence[Moment]] = field(default_factory=dict)  # in order, by kind and attempt
    running: ModelState | None = None


def job_figures(account: JobAccount | None, site: Site) -> JobFigures:
    """Return the figures of a job as its account knows them; None: nothing is recorded yet."""
    if account is None:
        return JobFigures()
    submitted = account.window.submitted.data if account.window.submitted else {}
    until_ns = settled_until(account)
    state = state_of(account)
    return JobFigures(
        is_submitted=account.window.submitted is not None,
        team=str(submitted.get("team", "")),
        model=str(submitted.get("model", "")),
        state=state,
        is_open=account.window.state == "RUNNING",
        amounts=_amounts(account, (account.window.start_ns, until_ns), site),
        moments=moments_of(account, until_ns),
        running=_model_state(account) if state == "running" else None,
    )


def settled_until(account: JobAccount) -> int:
    """Return up to where the partition is published: all of it unless the job runs."""
    window = account.window
    if window.state != "RUNNING":
        return window.end_ns
    alive = next((t for t in account.timelines if t.attempt.is_alive and t.attempt.start_ns is not None), None)
    if alive is None:
        ended = (t.attempt.cut_ns for t in account.timelines if t.attempt.start_ns is not None)
        return max(window.start_ns, window.end_ns - QUEUE_LAG_NS, *ended)
    ends: dict[int, int] = {}
    for item in alive.records():
        if item.record.rank is not None and not item.record.is_supervisors and item.record.ev != "heartbeat":
            ends[item.record.rank] = item.time_ns
    complete: dict[int, int] = {}
    for step in alive.steps:
        if step.is_complete:
            complete[step.rank] = max(step.stop_ns, complete.get(step.rank, step.stop_ns))
    assert alive.attempt.start_ns is not None
    known_ns = min((complete.get(rank, end_ns) for rank, end_ns in ends.items()), default=alive.attempt.start_ns)
    return min(window.end_ns, max(window.start_ns, known_ns, window.end_ns - SETTLE_NS))


class RanksHeld:
    """How many ranks an instant counts for: those of the attempt that it belongs to, or that it waits for.

    R18 gives scheduling no ranks; a fleet's queues need some: those that wait (docs/collector.md).
    """

    def __init__(self, timelines: tuple[AttemptTimeline, ...], begin_ns: int) -> None:
        self._ends: list[int] = []
        self._worlds: list[int] = []
        for timeline in timelines:
            self._ends.append(max(timeline.attempt.cut_ns, self._ends[-1] if self._ends else begin_ns))
            self._worlds.append(world_of(timeline))

    def at(self, time_ns: int) -> int:
        if not self._ends:
            return 1
        return self._worlds[min(bisect_right(self._ends, time_ns), len(self._ends) - 1)]

    def over(self, window: Interval) -> Iterator[tuple[int, int, int]]:
        """Yield (begin, end, ranks) that cover the window."""
        cuts = [cut for cut in self._ends if window[0] < cut < window[1]]
        for begin, end in pairwise(sorted({window[0], *cuts, window[1]})):
            yield begin, end, self.at(begin)


def _amounts(account: JobAccount, window: Interval, site: Site) -> dict[Key, int]:
    sums: Counter[Key] = Counter()
    kept = kept_time(account, window, ())
    held = RanksHeld(account.timelines, account.window.start_ns)
    views = attribute(account, site, window)
    waiting: Counter[str] = Counter()
    for piece in account.pieces:
        if piece.component == "scheduling":
            waiting[piece.reason] += held.at(piece.begin_ns) * measure(kept, piece.begin_ns, piece.end_ns)
    for row in views.as_spent:
        rank_ns = waiting[row.reason] if row.component == "scheduling" else row.rank_ns
        shown = ("training", "wasted") if row.component == "wasted" else ("training",)
        for component in shown if row.component in ("wasted", "effective") else (row.component,):
            sums[names.COMPONENT_JOB_TIME.prometheus, component] += row.ns
            sums[names.COMPONENT_RANK_TIME.prometheus, component] += rank_ns
        if row.component != "effective":
            phase = row.reason if row.reason in PHASES else OTHER
            sums[names.SUBCOMPONENT_RANK_TIME.prometheus, row.component, phase] += rank_ns
    for begin_ns, end_ns, ranks in held.over(window):
        sums[(names.WALL_RANK_TIME.prometheus,)] += ranks * measure(kept, begin_ns, end_ns)
    for caused in views.as_caused:
        reason = reason_of(caused.cause_class)
        if caused.cause == "interruption" and reason is not None:
            owner = site.owner_of_stop("", caused.cause_class or "") or "none"
            sums[names.RESTART_COST.prometheus, reason, owner] += caused.rank_ns
    sums.update(_restarts(account, window[1]))
    sums.update(_checkpoints(account))
    sums.update(_examples(account))
    sums[(names.RECOMPILES.prometheus,)] += recompilations(account, kept).count
    sums[names.CLIENT_DROPPED.prometheus, "queue"] += account.problems.dropped_records
    return {key: value for key, value in sums.items() if value}


def reason_of(cause_class: str | None) -> str | None:
    """Return the label of an interruption's class; None for a planned end, which is none."""
    if cause_class == "planned":
        return None
    return names.RESTART_REASONS["preemption" if cause_class == "preempted" else cause_class or "unknown"]


def _restarts(account: JobAccount, until_ns: int) -> Counter[Key]:
    """Interruptions that the job came back from: another attempt started, or the ranks went on by themselves."""
    last_start_ns = max((t.attempt.start_ns for t in account.timelines if t.attempt.start_ns is not None), default=0)
    found: Counter[Key] = Counter()
    for stop in account.interruptions:
        if stop.kind == "resize" or (stop.kind != "inprocess" and stop.time_ns > last_start_ns):
            continue
        kind = "preempted" if stop.kind == "preemption" else stop.failure_class
        if stop.time_ns <= until_ns:
            found[names.RESTARTS.prometheus, str(reason_of(kind))] += 1
    return found


def _checkpoints(account: JobAccount) -> Counter[Key]:
    found: Counter[Key] = Counter()
    operations, num_bytes = names.CHECKPOINT_OPERATIONS.prometheus, names.CHECKPOINT_BYTES.prometheus
    for timeline in account.timelines:
        for _, record in timeline.attempt.records:
            if record.ev == "ckpt_commit":
                found[operations, "save", "ok"] += 1
                size = record.data.get("bytes")
                found[num_bytes, "save"] += size if type(size) is int and size > 0 else 0
            elif record.ev == "ckpt_abandoned":
                found[operations, "save", "abandoned"] += 1
            elif record.ev == "restore":
                result = "ok" if record.data.get("fallback_from") is None else "fallback"
                found[operations, "restore", result] += 1
    return found


def _examples(account: JobAccount) -> Counter[Key]:
    """Samples of complete steps: each once, and how often beyond that."""
    lives: dict[tuple[int, int], list[Interval]] = {}
    for timeline in account.timelines:
        for step in timeline.steps:
            if step.is_complete and type(step.c0) is int and type(step.c1) is int:
                lives.setdefault((timeline.attempt.number, step.stretch), []).append((step.c0, step.c1))
    joined = [union(spans) for spans in lives.values()]
    once = length(union(span for spans in joined for span in spans))
    found: Counter[Key] = Counter()
    found[(names.EXAMPLES.prometheus,)] = once
    found[(names.EXAMPLES_REDONE.prometheus,)] = sum(map(length, joined)) - once
    return found


def _model_state(account: JobAccount) -> ModelState:
    commits = sorted(
        item.time_ns for t in account.timelines for item in t.attempt.records if item.record.ev == "ckpt_commit"
    )
    gaps = [after - before for before, after in pairwise(commits)]
    held = RanksHeld(account.timelines, account.window.start_ns)
    return ModelState(
        last_commit_ns=commits[-1] if commits else None,
        interval_ns=median_low(gaps) if gaps else None,
        at_risk_rank_ns=sum(held.at(p.begin_ns) * (p.end_ns - p.begin_ns) for p in account.at_risk),
        ranks=held.at(account.window.end_ns),
    )
