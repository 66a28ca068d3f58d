"""How each rank of a job started, read from its log: the spans before its first step, and what each waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from ett.event_reader import parse_file
from ett.event_schema import Record, rank_of_source

PROCESS = "process_start"  # from the spawn of the process to its first record
_STARTS = (b'"ev":"proc_start"', b'"ev":"span_begin"', b'"ev":"span_end"', b'"ev":"startup_node"', b'"ev":"step')
_STEP = b'"ev":"step'  # a step, or one that begins


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedNode:
    """A node of a start-up graph, or a span of a program that has none; times are the rank's monotonic clock's."""

    name: str
    span: str  # what its time is charged to
    begin_ns: int
    end_ns: int | None  # None: it still runs, or its process ended in it
    after: tuple[str, ...] | None  # the nodes that it waited for; None: it is a plain span, in a program's own order
    is_on_main: bool  # it took its turn in the thread that runs the start-up


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedRank:
    """One rank's way from the spawn of its process, or from the begin of a later generation, to its first step."""

    job: str
    attempt: int
    generation: int
    rank: int
    begin_ns: int
    first_step_ns: int | None  # None: it has not come to one
    nodes: tuple[StartedNode, ...]  # by begin

    @property
    def total_ns(self) -> int | None:
        return None if self.first_step_ns is None else self.first_step_ns - self.begin_ns


def read_starts(files: Iterable[tuple[str, bytes]]) -> list[StartedRank]:
    """Return the starts of a job, by attempt, generation and rank. Args: files: of the log, by name.

    Raises: CorruptState: a record of a newer schema version.
    """
    found: dict[tuple[object, ...], Record] = {}
    for name, data in files:
        if rank_of_source(name.rpartition("/")[2].partition("-")[0]) is not None:
            for record in parse_file(name, b"".join(_lines_of_start(data))).records:
                found.setdefault((record.src, record.host, record.pid, record.seq, record.mono_ns), record)
    key = attrgetter("att", "gen", "rank", "host", "boot", "pid")
    records = sorted(found.values(), key=lambda record: (*key(record), record.mono_ns, record.seq))
    starts = (_start(list(of_process)) for _, of_process in groupby(records, key))
    return [start for start in starts if start is not None]


def _lines_of_start(data: bytes) -> Iterator[bytes]:
    """Yield the lines of spans and nodes up to the first that speaks of a step: of a long log the first few."""
    first_step = data.find(_STEP)
    until = len(data) if first_step < 0 else data.find(b"\n", first_step) + 1 or len(data)
    for line in data[:until].splitlines(keepends=True):
        if any(kind in line for kind in _STARTS):
            yield line


def _start(records: list[Record]) -> StartedRank | None:
    """Args: records: of one process in one generation, in order of time."""
    steps = [int(record.data.get("b_mono", record.mono_ns)) for record in records if record.ev.startswith("step")]
    first_step_ns = min(steps, default=None)
    begun = next((record for record in records if record.ev == "proc_start"), None)
    spawned_ns = records[0].mono_ns if begun is None else _spawned_ns(begun)
    nodes = [] if begun is None else [_process(spawned_ns, begun.mono_ns)]
    nodes += _nodes(records, first_step_ns)
    first, rank = records[0], records[0].rank
    if rank is None or (len(nodes) <= 1 and first_step_ns is None):
        return None
    return StartedRank(
        job=first.job,
        attempt=first.att,
        generation=first.gen,
        rank=rank,
        begin_ns=spawned_ns,
        first_step_ns=first_step_ns,
        nodes=tuple(sorted(nodes, key=lambda node: node.begin_ns)),
    )


def _process(spawned_ns: int, begun_ns: int) -> StartedNode:
    return StartedNode(name=PROCESS, span="init", begin_ns=spawned_ns, end_ns=begun_ns, after=(), is_on_main=True)


def _spawned_ns(begun: Record) -> int:
    """Return when the supervisor spawned the process, on the process's clock; its first record where nobody said."""
    parent_wall_ns = begun.data.get("parent_wall_ns")
    if type(parent_wall_ns) is not int or not 0 < parent_wall_ns <= begun.wall_ns:
        return begun.mono_ns
    return begun.mono_ns - (begun.wall_ns - parent_wall_ns)


def _nodes(records: list[Record], first_step_ns: int | None) -> Iterator[StartedNode]:
    """Yield the nodes, and the plain spans that are in no other one, hold up the rank, and end before its steps."""
    ends = {str(record.data["id"]): record.mono_ns for record in records if record.ev == "span_end"}
    said = {str(record.data.get("id")): record.data for record in records if record.ev == "startup_node"}
    for record in records:
        if record.ev != "span_begin" or (first_step_ns is not None and record.mono_ns >= first_step_ns):
            continue
        span_id = str(record.data["id"])
        node = said.get(span_id)
        is_open = span_id not in ends and first_step_ns is not None  # a program's span around all of its training
        if node is None and (is_open or record.data.get("parent") is not None or not record.data.get("blocking", True)):
            continue
        yield StartedNode(
            name=str(record.data["name"] if node is None else node.get("node")),
            span=str(record.data["name"]),
            begin_ns=record.mono_ns,
            end_ns=ends.get(span_id),
            after=None if node is None else _names(node),
            is_on_main=node is None or node.get("main") is True,
        )


def _names(node: Mapping[str, object]) -> tuple[str, ...]:
    after = node.get("after")
    return tuple(map(str, after)) if isinstance(after, list) else ()
