"""The native engine says what the Python rules say, of any log: to the nanosecond, piece by piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett import log_columns
from ett.accounting import JobAccount, account, account_view
from ett.bench_log import BenchJob, load_workload
from ett.column_view import ColumnView, SweepEffort
from ett.event_line import encode_line
from ett.event_reader import EventLog, folder_files, merge, parse_file, read_files
from ett.figures import FIGURES
from ett.job_window import AccountingPolicy
from ett.log_columns import read_columns
from ett.report import build_report

pytestmark = pytest.mark.skipif(log_columns.NATIVE is None, reason="the extension is not built")

EPOCH_NS = 19 * 10**17
Records = list[dict[str, Any]]
Files = dict[str, Records]
Everything = Callable[[JobAccount | None], Any]
SPANS = ("init", "restore", "compile", "eval", "ckpt_save", "final_save", "mine", "theirs")


class Writer:
    """One file of one process; its times are small numbers, so that many of them are equal."""

    def __init__(self, files: Files, *, src: str, att: int, host: int, pid: int) -> None:
        self.src, self.pid, self.gen = src, pid, 0
        self.host, self.boot, self.origin = f"h{host}", f"boot{host}", 1000 * host
        self.records = files.setdefault(f"{0 if src == 'sup' else att}/{src}-h{host}-{pid}.jsonl", [])

    def emit(self, ev: str, at: int, att: int, **fields: Any) -> None:
        record = {"v": 1, "job": "j", "att": att, "gen": self.gen, "src": self.src, "host": self.host, "pid": self.pid}
        record |= {"boot": self.boot, "seq": len(self.records), "wall_ns": EPOCH_NS + at, "mono_ns": self.mono(at)}
        if self.src != "sup":
            record["rank"] = int(self.src[1:])
        self.records.append(record | {"ev": ev} | fields)

    def mono(self, at: int) -> int:
        return self.origin + at


@st.composite
def logs(draw: st.DrawFn) -> Files:
    """A job's files: attempts, ranks on two hosts, generations, faults, spans in each other, lost and open steps."""
    files: Files = {}
    supervisor = Writer(files, src="sup", att=0, host=0, pid=1)
    supervisor.emit("job_submitted", 0, 0)
    now, cursor = draw(st.integers(0, 5)), 0
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        if draw(st.booleans()):
            supervisor.emit("allocated", now, attempt)
            now += draw(st.integers(0, 3))
        supervisor.emit("attempt_started", now, attempt, **draw(st.sampled_from([{}, {"world": 3}])))
        now, cursor = _attempt(draw, files, supervisor, attempt=attempt, now=now, cursor=cursor)
        reason = draw(st.sampled_from(["failed", "preempted", "completed", None]))
        if reason:
            supervisor.emit("attempt_ended", now, attempt, reason=reason)
        now += draw(st.integers(0, 4))
    status = draw(st.sampled_from(["succeeded", "failed", None]))
    if status:
        supervisor.emit("job_ended", now, 0, status=status)
    return files


def _attempt(
    draw: st.DrawFn, files: Files, supervisor: Writer, *, attempt: int, now: int, cursor: int
) -> tuple[int, int]:
    world = draw(st.integers(1, 4))
    ranks = [
        Writer(files, src=f"r{r}", att=attempt, host=draw(st.integers(0, 1)), pid=10 * attempt + r)
        for r in range(world)
    ]
    knows_cursor = draw(st.sampled_from(["all", "all", "none", "some"]))
    number, gen = draw(st.integers(0, 3)), 0
    for rank in ranks:
        _odd_moment(draw, rank, attempt, now)
    for _ in range(draw(st.integers(0, 7))):
        what = draw(st.integers(0, 9))
        if what == 0:
            draw(st.sampled_from([supervisor, *ranks])).emit("fault", now, attempt, **{"class": "infra"})
            now += draw(st.integers(0, 3))
            number = max(0, number - draw(st.integers(0, 3)))
            cursor = max(0, cursor - draw(st.integers(0, 9)))
            if draw(st.booleans()):
                gen += 1
        if what == 1 or draw(st.integers(0, 9)) == 0:
            draw(st.sampled_from(ranks)).emit("restore", now, attempt, cursor=draw(st.integers(0, 20)))
        if what == 2:
            draw(st.sampled_from(ranks)).emit("cursor_unknown", now, attempt, step=number)
        if what == 3:
            draw(st.sampled_from([supervisor, *ranks])).emit("heartbeat", now, attempt, dropped=draw(st.integers(0, 2)))
        width, length = draw(st.integers(0, 5)), draw(st.integers(0, 6))
        for rank in ranks:
            rank.gen = gen
            begin = now + draw(st.integers(0, 1))
            if draw(st.integers(0, 7)) == 0:
                rank.emit("step_begin", begin, attempt, step=number, b_mono=rank.mono(begin))
            _odd_moment(draw, rank, attempt, begin)
            if draw(st.integers(0, 9)) == 0:
                continue
            known = knows_cursor == "all" or (knows_cursor == "some" and draw(st.booleans()))
            counted = {"c0": cursor, "c1": cursor + width} if known else {"samples": draw(st.integers(0, 3))}
            end = begin + max(0, length - draw(st.integers(0, 1)))
            fields = counted | draw(st.sampled_from([{}, {}, {"world": world}, {"committed": True}]))
            ends = {"b_mono": rank.mono(begin), "e_mono": rank.mono(end)}
            rank.emit("step", end + draw(st.integers(0, 1)), attempt, step=number, **ends, **fields)
        cursor, number, now = cursor + width, number + 1, now + length
        if what in (4, 5):
            tier = draw(st.sampled_from(["local", "remote"]))
            ranks[0].emit("ckpt_commit", now, attempt, id=f"c{number}", cursor=cursor, tier=tier)
    if draw(st.integers(0, 2)) == 0:
        draw(st.sampled_from([supervisor, *ranks])).emit("train_end", now, attempt)
    return now + draw(st.integers(0, 4)), cursor


def _odd_moment(draw: st.DrawFn, rank: Writer, attempt: int, at: int) -> None:
    """Perhaps spans: nested, overlapping, without an end, of an unknown name, beside the loop, with one id twice."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 3]))):
        fields = {"id": draw(st.integers(0, 4)), "name": draw(st.sampled_from(SPANS))}
        if draw(st.integers(0, 4)) == 0:
            fields["parent"] = draw(st.integers(0, 4))
        if draw(st.integers(0, 4)) == 0:
            fields["blocking"] = draw(st.booleans())
        rank.emit("span_begin", at, attempt, **fields)
        if draw(st.integers(0, 3)):
            rank.emit("span_end", at + draw(st.integers(0, 5)), attempt, id=fields["id"])


def columnar(files: Files) -> EventLog:
    blobs = {name: b"".join(map(encode_line, records)) for name, records in sorted(files.items())}
    return read_files([(name, partial(pieces_of, data, 10**6)) for name, data in blobs.items()])


def pieces_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def recorded(files: Files) -> EventLog:
    return merge(parse_file(name, b"".join(map(encode_line, records))) for name, records in sorted(files.items()))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(files=logs(), as_of=st.one_of(st.none(), st.integers(-2, 80)), infer=st.booleans())
def test_columns_and_records_give_the_same_account(
    files: Files, as_of: int | None, infer: bool, everything: Everything
) -> None:
    policy = AccountingPolicy(infer_compile=infer, stale_after_s=30e-9)
    asked = {"as_of_ns": EPOCH_NS + (as_of or 0), "cut_at_as_of": as_of is not None, "policy": policy}
    log, reference = columnar(files), recorded(files)
    assert log.columns is not None
    found, expected = account(log, **asked), account(reference, **asked)
    assert everything(found) == everything(expected)
    if found is not None and expected is not None:
        kept = {"window": (EPOCH_NS + 3, EPOCH_NS + 40), "exclude": [(EPOCH_NS + 9, EPOCH_NS + 15)]}
        assert build_report(found) == build_report(expected)
        assert build_report(found, **kept) == build_report(expected, **kept)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    files=logs(),
    threads=st.sampled_from([1, 2, 4]),
    block=st.sampled_from([1, 3, 100]),
    piece=st.sampled_from([40, 10**6]),
)
def test_any_number_of_threads_gives_the_account_of_the_python_rules(
    files: Files, threads: int, block: int, piece: int, everything: Everything
) -> None:
    blobs = [(name, b"".join(map(encode_line, records))) for name, records in sorted(files.items())]
    columns = read_columns([(name, pieces_of(data, piece)) for name, data in blobs], threads=threads)
    assert columns.is_exact
    view = ColumnView(columns, effort=SweepEffort(threads=threads, threads_from_records=0, block=block))
    found = account_view(view, EventLog(columns=columns), as_of_ns=0)
    assert everything(found) == everything(account(recorded(files), as_of_ns=0, cut_at_as_of=False))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_long_log_has_one_account_on_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    workload = load_workload(FIGURES.parent / "workloads" / "accounting.toml")
    BenchJob(workload, records=80_000).write(tmp_path / "events")
    files = folder_files(tmp_path)

    def answer(threads: int) -> object:
        columns = read_columns([(name, pieces()) for name, pieces in files], threads=threads)
        view = ColumnView(columns, effort=SweepEffort(threads=threads, threads_from_records=0, block=100))
        found = account_view(view, EventLog(columns=columns), as_of_ns=0)
        assert found is not None
        return build_report(found), len(found.pieces), first(found)

    def first(found: JobAccount) -> list[tuple[int, int, str, int | None]]:
        return [(p.begin_ns, p.end_ns, p.reason, p.rank) for p in islice(found.pieces, 20_000)]

    assert answer(threads) == answer(1)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(files=logs())
def test_two_accounts_of_one_log_are_equal(files: Files) -> None:
    one, two = (account(columnar(files), as_of_ns=0, cut_at_as_of=False) for _ in range(2))
    assert one is None or two is None or (one.pieces == two.pieces and one.pieces == tuple(two.pieces))
    if one is not None and one.pieces:
        assert one.pieces != one.pieces[1:]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(files=logs(), seed=st.integers(0, 2**32))
def test_lines_out_of_order_or_missing_change_nothing_but_the_counts(
    files: Files, seed: int, everything: Everything
) -> None:
    rng = random.Random(seed)
    mixed = {name: rng.sample(own * 2, max(0, len(own) * 2 - rng.randint(0, 2))) for name, own in files.items()}
    log = columnar(mixed)
    assert log.columns is not None
    assert everything(account(log, as_of_ns=0, cut_at_as_of=False)) == everything(
        account(recorded(mixed), as_of_ns=0, cut_at_as_of=False)
    )


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(files=logs(), data=st.data())
def test_odd_values_change_nothing_but_the_speed(files: Files, data: st.DataObject, everything: Everything) -> None:
    records = [record for own in files.values() for record in own]
    odd = st.one_of(
        st.none(), st.integers(-5, 5), st.integers(-(2**64), 2**64), st.floats(), st.just("r0"), st.just([])
    )
    for record in data.draw(st.lists(st.sampled_from(records), max_size=6)):
        record[data.draw(st.sampled_from(sorted(set(record) - {"v"})))] = data.draw(odd)
    mine = outcome(everything, lambda: account(columnar(files), as_of_ns=EPOCH_NS + 50, cut_at_as_of=False))
    assert mine == outcome(everything, lambda: account(recorded(files), as_of_ns=EPOCH_NS + 50, cut_at_as_of=False))


def outcome(everything: Everything, run: Callable[[], JobAccount | None]) -> object:
    try:
        return everything(run())
    except ValueError as err:  # NaN in a line that this test itself cannot write
        return str(err)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(files=logs(), seed=st.integers(0, 2**32))
def test_columns_give_back_the_records_they_were_made_from(files: Files, seed: int) -> None:
    rng = random.Random(seed)
    blobs = {name: b"".join(map(encode_line, records)) for name, records in files.items()}
    cut = {name: data[: len(data) - rng.randint(0, 60)] for name, data in blobs.items()}
    # Pieces of a few bytes: a line may lie in many of them.
    log = read_files([(name, partial(pieces_of, data, 50)) for name, data in cut.items()])
    reference = merge(parse_file(name, data) for name, data in cut.items())
    assert log.columns is not None
    assert sorted(map(_comparable, log.records)) == sorted(map(_comparable, reference.records))
    assert log.problems == reference.problems


def _comparable(record: Any) -> str:
    return repr((*record[:-1], sorted(record.data.items())))


def test_numbers_of_any_size_are_stored_exactly() -> None:
    rng = random.Random(1)
    files: Files = {}
    writer = Writer(files, src="r0", att=1, host=0, pid=1)
    for number in range(1500):
        begin = rng.randint(0, 10 ** rng.randint(1, 17))
        counted = {"c0": rng.randint(-(10**15), 10**15), "c1": rng.randint(-(10**15), 10**15)}
        writer.emit(
            "step", begin, 1, step=number * (number % 7), b_mono=begin, e_mono=rng.randint(0, 10**18), **counted
        )
    log = columnar(files)
    assert log.columns is not None
    assert sorted(map(_comparable, log.records)) == sorted(map(_comparable, recorded(files).records))
