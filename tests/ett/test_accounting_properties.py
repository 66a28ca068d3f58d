"""What holds for every job, whatever happened to it and to its log (docs/ett.md)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ett.accounting import JobAccount, account
from ett.event_line import encode_line
from ett.event_reader import EventLog, merge, parse_file
from ett.live_account import LiveAccount
from ett.report import build_report, report_json

NS = 1_000_000_000
EPOCH_NS = 1_900_000_000 * NS
Events = list[dict[str, Any]]
Files = dict[str, list[dict[str, Any]]]
CaseLog = Callable[[dict[str, Any]], Any]
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A job as a supervisor and 1 to 3 ranks would log it: attempts, spans, steps, commits, faults; an end or none."""
    seconds = st.integers(0, 12)
    world = draw(st.integers(1, 3))
    events: Events = [{"ev": "job_submitted", "t": 0}]
    now, cursor, committed = draw(seconds), 0, 0
    reason = None
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        if draw(st.booleans()):
            events.append({"ev": "allocated", "att": attempt, "t": now})
            now += draw(seconds)
        events.append({"ev": "attempt_started", "att": attempt, "t": now, "world": world})
        cursor = committed
        body, now, committed = _attempt(draw, attempt, world, now=now, cursor=cursor, committed=committed)
        events += body
        reason = draw(st.sampled_from(["failed", "failed", "preempted", "completed", "suspended", None]))
        if reason is not None:
            events.append({"ev": "attempt_ended", "att": attempt, "t": now, "reason": reason})
        now += draw(seconds)
    case: dict[str, Any] = {"id": "j", "events": events}
    status = draw(st.sampled_from(["succeeded", "failed", "cancelled", None]))
    if status is not None:
        events.append({"ev": "job_ended", "t": now, "status": status})
    else:
        case["as_of"] = now + draw(st.integers(0, 120))
    return case


def _attempt(
    draw: st.DrawFn, attempt: int, world: int, *, now: int, cursor: int, committed: int
) -> tuple[Events, int, int]:
    events: Events = []
    ready = []
    for rank in range(world):
        src = f"r{rank}"
        if attempt == 1 and rank == 2 and draw(st.booleans()):
            events.append({"ev": "clock_sync", "att": 1, "src": src, "t": 0, "offset": 0})
        begin = now
        for name in draw(st.lists(st.sampled_from(["init", "restore", "compile", "warm"]), max_size=2)):
            end = begin + draw(st.integers(1, 9))
            kind = {"ev": "span", "b": begin, "e": end} if draw(st.integers(0, 5)) else {"ev": "span_open", "t": begin}
            events.append({**kind, "att": attempt, "src": src, "name": name})
            begin = end
        ready.append(begin)
    now = max(ready)
    if attempt > 1 and draw(st.integers(0, 2)) == 0:
        src = f"r{draw(st.integers(0, world - 1))}"
        events.append({"ev": "cursor_unknown", "att": attempt, "src": src, "t": now, "step": 1})
    for _ in range(draw(st.integers(0, 4))):
        width, length = draw(st.integers(1, 4)), draw(st.integers(2, 9))
        what = draw(st.integers(0, 9))
        if what == 0:
            src = draw(st.sampled_from(["sup", "r0", f"r{world - 1}"]))
            events.append({"ev": "fault", "att": attempt, "src": src, "t": now})
            now += draw(st.integers(0, 5))
            cursor = draw(st.sampled_from([cursor, committed]))
        if what in (0, 7, 8) and draw(st.integers(0, 2)) == 0:
            events.append({"ev": "restore", "att": attempt, "src": "r0", "t": now, "cursor": cursor})
        events += [{"ev": "step_begin", "att": attempt, "src": f"r{r}", "t": now} for r in range(world) if what < 3]
        if what == 1:
            continue
        lost = draw(st.sampled_from([(), (), (), (0,), tuple(range(world))]))
        for rank in range(world):
            if rank in lost:
                continue
            end = now + length - draw(st.integers(0, 1))
            ends = {"b": now, "e": end, "c0": cursor, "c1": cursor + width}
            events.append({"ev": "step", "att": attempt, "src": f"r{rank}", **ends})
        if what == 2:
            stall = {"ev": "span", "att": attempt, "src": "r0", "name": "ckpt_save", "b": now + 1, "e": now + length}
            events.append(stall)
        cursor, now = cursor + width, now + length
        if what in (4, 5):
            committed = cursor
            events.append({"ev": "ckpt_commit", "att": attempt, "src": "r0", "t": now, "cursor": cursor})
        if what == 6:
            events.append({"ev": "span", "att": attempt, "src": "r0", "name": "eval", "b": now, "e": now + 3})
            now += 3
    if draw(st.booleans()):
        events += [{"ev": "train_end", "att": attempt, "src": f"r{rank}", "t": now} for rank in range(world)]
        events.append({"ev": "span", "att": attempt, "src": "r0", "name": "final_save", "b": now, "e": now + 4})
    return events, now + draw(st.integers(0, 6)), committed


def log_of(files: Files) -> EventLog:
    return merge(parse_file(name, b"".join(map(encode_line, records))) for name, records in sorted(files.items()))


def account_of(case: dict[str, Any], files: Files, **more: Any) -> JobAccount:
    as_of_ns = EPOCH_NS + case["as_of"] * NS if "as_of" in case else 0
    found = account(
        log_of(files), as_of_ns=more.pop("as_of_ns", as_of_ns), **({"cut_at_as_of": "as_of" in case} | more)
    )
    assert found is not None
    return found


def figures(found: JobAccount) -> dict[str, Any]:
    data: dict[str, Any] = report_json(build_report(found))["data"]
    return data


@pytest.mark.slow
@quick
@given(case=jobs())
def test_pieces_cover_the_window_exactly(case: dict[str, Any], case_log: CaseLog) -> None:
    found = account_of(case, case_log(case).files())
    edges = [(piece.begin_ns, piece.end_ns) for piece in found.pieces]
    assert all(begin < end for begin, end in edges)
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    if edges:
        assert (edges[0][0], edges[-1][1]) == (found.window.start_ns, found.window.end_ns)
    data = figures(found)
    assert sum(data["ns"].values()) == data["total_ns"] == found.window.end_ns - found.window.start_ns
    assert sum(data["detail_ns"].values()) == data["total_ns"]


@pytest.mark.slow
@quick
@given(case=jobs(), seed=st.integers(0, 2**32))
def test_order_and_duplicates_change_nothing(case: dict[str, Any], seed: int, case_log: CaseLog) -> None:
    files: Files = case_log(case).files()
    rng = random.Random(seed)
    mixed = {name: rng.sample(records * 2, len(records) * 2) for name, records in files.items()}
    copies = {f"copy/{name.rpartition('/')[2]}": records for name, records in files.items() if rng.random() < 0.5}
    assert figures(account_of(case, mixed | copies)) == figures(account_of(case, files))


@pytest.mark.slow
@quick
@given(case=jobs(), by_ns=st.integers(-(10**15), 10**15), boot_ns=st.integers(-(10**12), 10**15))
def test_shifting_time_changes_no_duration(case: dict[str, Any], by_ns: int, boot_ns: int, case_log: CaseLog) -> None:
    files: Files = case_log(case).files()
    shifted: Files = {
        name: [
            r
            | {"wall_ns": r["wall_ns"] + by_ns}
            | {field: r[field] + boot_ns for field in ("mono_ns", "b_mono", "e_mono") if field in r}
            for r in records
        ]
        for name, records in files.items()
    }
    as_of_ns = EPOCH_NS + case.get("as_of", 0) * NS + by_ns if "as_of" in case else 0
    assert figures(account_of(case, shifted, as_of_ns=as_of_ns)) == figures(account_of(case, files))


@pytest.mark.slow
@quick
@given(case=jobs(), cuts=st.lists(st.integers(0, 120 * NS), min_size=1, max_size=4))
def test_windows_add_up(case: dict[str, Any], cuts: list[int], case_log: CaseLog) -> None:
    found = account_of(case, case_log(case).files())
    edges = sorted({found.window.start_ns, found.window.end_ns, *(EPOCH_NS + cut for cut in cuts)})
    parts = [build_report(found, (begin, end)) for begin, end in pairwise(edges)]
    whole = build_report(found)
    assert sum(part.total_ns for part in parts) == whole.total_ns
    for name, ns in whole.detail_ns.items():
        assert sum(part.detail_ns.get(name, 0) for part in parts) == ns
    if whole.total_ns:
        assert sum(len(part.interruptions) for part in parts) == len(whole.interruptions)


@pytest.mark.slow
@quick
@given(case=jobs(), hole=st.tuples(st.integers(0, 120 * NS), st.integers(0, 60 * NS)))
def test_excluded_time_leaves_both_sides(case: dict[str, Any], hole: tuple[int, int], case_log: CaseLog) -> None:
    found = account_of(case, case_log(case).files())
    out = (EPOCH_NS + hole[0], EPOCH_NS + sum(hole))
    kept, inside = build_report(found, exclude=[out, out]), build_report(found, out)
    whole = build_report(found)
    assert kept.total_ns + inside.total_ns == whole.total_ns
    for component in whole.ns:
        assert kept.ns[component] + inside.ns[component] == whole.ns[component]
    assert len(kept.interruptions) == len(whole.interruptions)


@pytest.mark.slow
@quick
@given(case=jobs(), at=st.integers(0, 150), data=st.data())
def test_a_heartbeat_never_changes_effective(
    case: dict[str, Any], at: int, data: st.DataObject, case_log: CaseLog
) -> None:
    before = account_of(case, case_log(case).files())
    number, src = data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["sup", "r0", "r1", "r7"]))
    beat = {"ev": "heartbeat", "t": at, "att": number if src == "sup" else max(1, number), "src": src}
    after = account_of(case, case_log(case | {"events": [*case["events"], beat]}).files())
    assert figures(after)["ns"]["effective"] == figures(before)["ns"]["effective"]


@pytest.mark.slow
@quick
@given(case=jobs(), at=st.integers(0, 150))
def test_a_prefix_in_time_never_keeps_more_than_the_whole(case: dict[str, Any], at: int, case_log: CaseLog) -> None:
    files = case_log(case).files()
    whole = figures(account_of(case, files))
    if whole["state"] == "SUCCEEDED":
        return  # its last attempt may have ended below an earlier commit, which that invalidates
    early = account(log_of(files), as_of_ns=EPOCH_NS + at * NS)
    if early is not None:
        kept = figures(early)
        assert round(kept["ns"]["effective"] - kept["at_risk_s"] * NS) <= whole["ns"]["effective"]


@pytest.mark.slow
@quick
@given(case=jobs(), seed=st.integers(0, 2**32))
def test_record_by_record_gives_the_answer_of_the_whole(case: dict[str, Any], seed: int, case_log: CaseLog) -> None:
    files = case_log(case).files()
    log = log_of(files)
    arriving = random.Random(seed).sample(log.records, len(log.records))
    live = LiveAccount()
    as_of_ns = EPOCH_NS + case.get("as_of", 0) * NS if "as_of" in case else 0
    for index, record in enumerate(arriving):
        live.add(record)
        if index == len(arriving) // 2:
            live.account(as_of_ns)
    found = live.account(as_of_ns, cut_at_as_of="as_of" in case)
    assert found is not None
    assert figures(found) == figures(account_of(case, files))


@pytest.mark.slow
@settings(
    max_examples=24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(case=jobs(), seed=st.integers(0, 2**32))
def test_a_file_cut_at_any_byte_still_gives_an_exact_answer(case: dict[str, Any], seed: int, case_log: CaseLog) -> None:
    blobs = {name: b"".join(map(encode_line, records)) for name, records in case_log(case).files().items()}
    _check_cuts(case, blobs, lambda data: random.Random(seed).sample(range(len(data) + 1), min(40, len(data))))


@pytest.mark.campaign
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(case=jobs())
def test_a_file_cut_at_every_byte_still_gives_an_exact_answer(case: dict[str, Any], case_log: CaseLog) -> None:
    blobs = {name: b"".join(map(encode_line, records)) for name, records in case_log(case).files().items()}
    _check_cuts(case, blobs, lambda data: range(len(data) + 1))


def _check_cuts(case: dict[str, Any], blobs: dict[str, bytes], cuts: Callable[[bytes], Sequence[int]]) -> None:
    for log in _cut_logs(blobs, cuts):
        found = account(log, as_of_ns=EPOCH_NS + case.get("as_of", 0) * NS, cut_at_as_of=False)
        if found is not None:
            data = report_json(build_report(found))["data"]
            assert sum(data["ns"].values()) == data["total_ns"] >= 0


def _cut_logs(blobs: dict[str, bytes], cuts: Callable[[bytes], Sequence[int]]) -> Iterator[EventLog]:
    whole = {name: parse_file(name, data) for name, data in blobs.items()}
    for name, data in blobs.items():
        others = [file for other, file in whole.items() if other != name]
        for cut in cuts(data):
            yield merge([*others, parse_file(name, data[:cut])])


@settings(quick, max_examples=150)
@given(case=jobs())
@pytest.mark.slow
def test_the_sweep_agrees_with_asking_the_rules_at_every_instant(
    case: dict[str, Any], case_log: CaseLog, naive_job: Any
) -> None:
    found = account_of(case, case_log(case).files())
    naive = naive_job(case["events"], case.get("as_of")).seconds()
    seconds = {name: value for name, value in figures(found)["seconds"].items() if value}
    assert seconds == pytest.approx({name: float(value) for name, value in naive.items()}, abs=1e-6)


@pytest.mark.slow
@quick
@given(case=jobs(), data=st.data())
def test_records_that_make_no_sense_never_break_the_partition(
    case: dict[str, Any], data: st.DataObject, case_log: CaseLog
) -> None:
    files: Files = case_log(case).files()
    records = [record for own in files.values() for record in own]
    odd = st.one_of(
        st.none(), st.integers(-5, 5), st.integers(-(2**63), 2**63), st.floats(), st.just("r0"), st.just([])
    )
    for record in data.draw(st.lists(st.sampled_from(records), max_size=6)):
        name = data.draw(st.sampled_from(sorted(set(record) - {"v"})))
        record[name] = data.draw(odd)
    found = account(log_of(files), as_of_ns=EPOCH_NS + 50 * NS, cut_at_as_of=data.draw(st.booleans()))
    if found is not None:
        figure = figures(found)
        assert sum(figure["ns"].values()) == sum(figure["detail_ns"].values()) == figure["total_ns"]
