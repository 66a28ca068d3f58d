"""A job's spans tile its time, say what `ett report` says, and have the same ids whenever they are made."""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ett.accounting import JobAccount, account
from ett.event_line import encode_line
from ett.event_reader import EventLog, merge, parse_file
from ett.event_schema import COMPONENTS, NS
from ett.otel import attribute_names as names
from ett.otel.attribute_names import ATTRIBUTES
from ett.otel.job_span import JobSpan
from ett.otel.job_trace import job_spans, root_place
from ett.otel.trace_ids import attempt_place, needs_own_trace, parse_traceparent
from ett.report import build_report

EPOCH_NS = 1_900_000_000 * NS
CASES = {
    case["id"]: case
    for name in ("handed.json", "ours.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
    if "events" in case
}
CaseLog = Callable[[Any], Any]
SPAN_NAMES = {
    "attempt", "scheduling", "initialization", "compilation", "training", "shutdown", "rollback", "compilation.graph",
    "checkpoint.save", "checkpoint.stage", "checkpoint.write", "checkpoint.commit", "phase", "provision",
    "inprocess_restart", "imports", "device_init", "process_group", "rendezvous", "model_build", "data_warmup",
    "restore", "elastic_reconfig", "init",
}  # fmt: skip
COMPONENT_SPANS = ("scheduling", "initialization", "compilation", "training", "shutdown")


def _random_jobs() -> Any:
    """The jobs of the accounting's own property tests."""
    path = Path(__file__).parent / "test_accounting_properties.py"
    spec = importlib.util.spec_from_file_location("accounting_properties", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.jobs()


def account_of(case: Any, case_log: CaseLog) -> JobAccount:
    files = case_log(case).files()
    log: EventLog = merge([parse_file(name, b"".join(map(encode_line, records))) for name, records in files.items()])
    as_of_ns = EPOCH_NS + round(case["as_of"] * NS) if "as_of" in case else EPOCH_NS + 10**6 * NS
    found = account(log, as_of_ns=as_of_ns, cut_at_as_of="as_of" in case)
    assert found is not None
    return found


def by_parent(spans: Iterable[JobSpan]) -> dict[int | None, list[JobSpan]]:
    children: dict[int | None, list[JobSpan]] = defaultdict(list)
    for span in spans:
        children[span.parent_id].append(span)
    return children


def check_invariants(found: JobAccount) -> None:
    spans = job_spans(found)
    root = spans[0]
    by_id = {span.place.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    assert all(span.place.trace_id == root.place.trace_id for span in spans)
    for span in spans[1:]:
        assert span.start_ns <= span.end_ns
        assert span.parent_id is not None
        parent = by_id[span.parent_id]
        if span.name == "rollback":  # it begins where the lost work began: in an earlier attempt
            assert root.start_ns <= span.start_ns < parent.end_ns >= span.end_ns
        else:
            assert parent.start_ns <= span.start_ns <= span.end_ns <= parent.end_ns
        assert span.name in SPAN_NAMES
        assert set(span.attributes) <= set(ATTRIBUTES)
    for span in spans:
        assert all(span.start_ns <= event.time_ns <= span.end_ns for event in span.events)
        assert [e.time_ns for e in span.events] == sorted(e.time_ns for e in span.events)
    _check_tiling(spans, found)
    _check_sums(spans, found)


def _check_tiling(spans: list[JobSpan], found: JobAccount) -> None:
    children = by_parent(spans)
    root = spans[0]
    assert (root.start_ns, root.end_ns) == (found.window.start_ns, found.window.end_ns)
    if found.pieces:
        _tiles(children[root.place.span_id], root)
    for attempt in (span for span in spans if span.name == "attempt"):
        _tiles([s for s in children[attempt.place.span_id] if s.name in COMPONENT_SPANS], attempt)
    for span in spans:
        if span.name in ("initialization", "compilation"):
            own = children[span.place.span_id]
            assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))


def _tiles(parts: list[JobSpan], whole: JobSpan) -> None:
    now = whole.start_ns
    for part in parts:
        assert part.start_ns == now
        now = part.end_ns
    assert now == whole.end_ns


def _check_sums(spans: list[JobSpan], found: JobAccount) -> None:
    report = build_report(found)
    sums: dict[str, int] = dict.fromkeys(COMPONENTS, 0)
    for span in spans[1:]:
        if span.name in COMPONENT_SPANS:
            seconds = {c: float(span.attributes.get(names.duration(c), 0)) for c in COMPONENTS}
            for component, value in seconds.items():
                sums[component] += round(value * NS)
            if not found.exclusions:
                assert sum(round(value * NS) for value in seconds.values()) == span.end_ns - span.start_ns
    assert sums == report.ns
    root = spans[0].attributes
    assert {c: round(float(root[names.duration(c)]) * NS) for c in COMPONENTS} == report.ns
    assert root.get(names.EFFECTIVE_RATIO) == report.ett


@pytest.mark.parametrize("case_id", sorted(CASES))
def test_spans_of_every_case_tile_it_exactly(case_id: str, case_log: CaseLog) -> None:
    check_invariants(account_of(CASES[case_id], case_log))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(case=_random_jobs())
@pytest.mark.slow
def test_spans_of_any_job_tile_it_exactly(case: Any, case_log: CaseLog) -> None:
    check_invariants(account_of(case, case_log))


@pytest.mark.slow
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(case=_random_jobs(), until_s=st.integers(0, 120))
def test_what_a_job_does_later_changes_no_id(case: Any, until_s: int, case_log: CaseLog) -> None:
    files = case_log(case).files()
    log = merge([parse_file(name, b"".join(map(encode_line, records))) for name, records in files.items()])
    whole = account_of(case, case_log)
    early = account(log, as_of_ns=EPOCH_NS + until_s * NS)
    if early is None:
        return
    later = {s.place for s in job_spans(whole) if s.name == "attempt"}
    assert {s.place for s in job_spans(early) if s.name == "attempt" and not s.is_open} <= later
    assert job_spans(early)[0].place == job_spans(whole)[0].place


def test_a_failure_is_an_event_of_the_attempt_that_it_ended(case_log: CaseLog) -> None:
    first, second = (s for s in job_spans(account_of(CASES["C02"], case_log)) if s.name == "attempt")
    (failure,) = first.events
    assert failure.name == "failure"
    assert failure.time_ns == first.end_ns
    assert failure.attributes[names.ERROR_TYPE] in ("user_error", "infrastructure_failure", "unknown_failure")
    assert first.is_error
    assert (second.events, second.is_error) == ((), False)
    assert [link.place for link in second.links] == [first.place]
    assert second.attributes[names.RESTART_TIER] == "in_job"


def test_a_rollback_goes_from_the_first_lost_step_to_new_data(case_log: CaseLog) -> None:
    found = account_of(CASES["C02"], case_log)
    (rollback,) = (s for s in job_spans(found) if s.name == "rollback")
    replayed = [p for p in found.pieces if p.reason == "replay"]
    assert rollback.end_ns == replayed[-1].end_ns
    assert rollback.attributes[names.duration("wasted")] == build_report(found).detail_ns["wasted.replay"] / NS
    lost_ns = min(s.begin_ns for s in found.timelines[0].steps if s.is_complete and s.c1 > replayed[0].step.c0)
    assert rollback.start_ns == lost_ns
    assert rollback.attributes[names.ROLLBACK_FROM] > rollback.attributes[names.ROLLBACK_TO]


def test_training_has_an_event_for_each_minute_rather_than_a_span_for_each_step(case_log: CaseLog) -> None:
    case = {"id": "long", "events": [
        {"ev": "job_submitted", "t": 0}, {"ev": "attempt_started", "att": 1, "t": 0, "world": 1},
        {"ev": "steps", "att": 1, "src": "r0", "t0": 10, "n": 600, "dt": 1, "c0": 0, "dc": 8},
        {"ev": "train_end", "att": 1, "src": "r0", "t": 610},
        {"ev": "attempt_ended", "att": 1, "t": 611, "reason": "completed"},
        {"ev": "job_ended", "t": 611, "status": "succeeded"},
    ]}  # fmt: skip
    spans = job_spans(account_of(case, case_log))
    assert [s.name for s in spans] == ["train job", "attempt", "initialization", "training", "shutdown"]
    training = spans[3]
    assert [e.attributes[names.STEP_COUNT] for e in training.events] == [60] * 10
    assert training.attributes[names.EXAMPLES] == 4_800
    assert training.attributes[names.STEP_COUNT] == 600
    assert spans[0].attributes[names.JOB_STATE] == "succeeded"


def test_a_save_is_a_span_of_the_training_beside_which_it_ran(case_log: CaseLog) -> None:
    case = {"id": "save", "events": [
        {"ev": "job_submitted", "t": 0}, {"ev": "attempt_started", "att": 1, "t": 0, "world": 1},
        {"ev": "steps", "att": 1, "src": "r0", "t0": 1, "n": 5, "dt": 1, "c0": 0, "dc": 1},
        {"ev": "span", "att": 1, "src": "r0", "name": "ckpt_save", "b": 6, "e": 8},
        {"ev": "ckpt_begin", "att": 1, "src": "r0", "t": 6, "id": "a", "step": 5, "cursor": 5},
        {"ev": "steps", "att": 1, "src": "r0", "t0": 8, "n": 5, "dt": 1, "c0": 5, "dc": 1},
        {"ev": "ckpt_commit", "att": 1, "src": "r0", "t": 11, "id": "a", "step": 5, "cursor": 5, "bytes": 7,
         "tier": "local"},
        {"ev": "ckpt_begin", "att": 1, "src": "r0", "t": 12, "id": "b", "step": 9, "cursor": 9},
        {"ev": "ckpt_abandoned", "att": 1, "src": "r0", "t": 12.5, "step": 9, "cursor": 9},
        {"ev": "attempt_ended", "att": 1, "t": 14, "reason": "failed", "class": "user", "exit_code": 3},
        {"ev": "job_ended", "t": 14, "status": "failed"},
    ]}  # fmt: skip
    found = account_of(case, case_log)
    check_invariants(found)
    spans = job_spans(found)
    training = next(s for s in spans if s.name == "training")
    saves = [s for s in spans if s.name == "checkpoint.save"]
    assert {s.parent_id for s in saves} == {training.place.span_id}
    assert [s.attributes[names.CHECKPOINT_RESULT] for s in saves] == ["committed", "abandoned"]
    assert [s.is_error for s in saves] == [False, True]
    parts = [(s.name, s.start_ns - EPOCH_NS, s.end_ns - EPOCH_NS) for s in spans if s.parent_id == saves[0].place[1]]
    assert parts == [
        ("checkpoint.stage", 6 * NS, 8 * NS),
        ("checkpoint.write", 8 * NS, 11 * NS),
        ("checkpoint.commit", 11 * NS, 11 * NS),
    ]
    assert [e.attributes[names.REASON] for e in training.events if e.name == "stall"] == ["ckpt_save", "in_flight"]
    attempt = spans[1]
    assert attempt.attributes[names.EXIT_CODE] == 3
    assert attempt.attributes[names.ERROR_TYPE] == "user_error"


@pytest.mark.slow
def test_a_loop_that_compiles_in_every_step_gives_a_bounded_number_of_spans(case_log: CaseLog) -> None:
    events: list[Any] = [
        {"ev": "job_submitted", "t": 0},
        {"ev": "attempt_started", "att": 1, "t": 0, "world": 1},
    ]
    for n in range(1_500):
        events += [
            {"ev": "span", "att": 1, "src": "r0", "name": "compile", "b": 10 + 3 * n, "e": 11 + 3 * n},
            {"ev": "step", "att": 1, "src": "r0", "b": 11 + 3 * n, "e": 13 + 3 * n, "c0": n, "c1": n + 1},
        ]
    found = account_of({"id": "recompiles", "events": events, "as_of": 10 + 3 * 1_500}, case_log)
    check_invariants(found)
    assert len(job_spans(found)) < 1_500


def test_an_attempt_that_still_runs_is_open(case_log: CaseLog) -> None:
    events = [e for e in CASES["C02"]["events"] if e["ev"] != "job_ended"]
    alive = [e for e in events if not (e["ev"] == "attempt_ended" and e["att"] == 2)]
    last = max(e.get("t", e.get("e", 0)) for e in alive)
    spans = job_spans(account_of({"id": "c02", "events": alive, "as_of": last + 1}, case_log))
    assert {s.attempt for s in spans if s.is_open} == {None, 2}
    assert {s.attempt for s in spans if not s.is_open} == {1}


def test_attempts_started_a_day_after_the_submission_have_a_trace_of_their_own(case_log: CaseLog) -> None:
    events: list[Any] = [{"ev": "job_submitted", "t": 0}]
    for number, begin in ((1, 10), (2, 90_000), (3, 180_000)):
        events.append({"ev": "attempt_started", "att": number, "t": begin, "world": 1})
        events.append({"ev": "attempt_ended", "att": number, "t": begin + 1_000, "reason": "preempted"})
    found = account_of(
        {"id": "long", "events": [*events, {"ev": "job_ended", "t": 190_000, "status": "failed"}]}, case_log
    )
    root, *_ = spans = job_spans(found)
    attempts = [s for s in spans if s.name == "attempt"]
    assert [s.place.trace_id == root.place.trace_id for s in attempts] == [True, False, False]
    assert [s.parent_id for s in attempts] == [root.place.span_id, None, None]
    assert [s.links[0].place for s in attempts[1:]] == [s.place for s in attempts[:-1]]
    for attempt in attempts[1:]:
        own = [s for s in spans if s.attempt == attempt.attempt]
        assert {s.place.trace_id for s in own} == {attempt.place.trace_id}
    assert attempts[1].place == attempt_place("long", 2, has_own_trace=True)
    never = [s for s in job_spans(found, "never") if s.name == "attempt"]
    assert {s.place.trace_id for s in never} == {root.place.trace_id}
    assert needs_own_trace(0, "always")


def test_the_launchers_trace_is_linked(case_log: CaseLog) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    case = {"id": "j", "events": [{"ev": "job_submitted", "t": 0, "traceparent": parent}], "as_of": 5}
    (link,) = job_spans(account_of(case, case_log))[0].links
    assert link.place.traceparent == parent


@pytest.mark.parametrize(
    "text",
    ["", "00", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff-" + "1" * 32 + "-b7ad6b7169203331-01", "00-" + "A" * 32,
     "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra"],
)  # fmt: skip
def test_an_invalid_traceparent_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_ids_depend_on_the_job_alone() -> None:
    assert root_place("a") == root_place("a") != root_place("b")
    assert parse_traceparent(root_place("a").traceparent) == root_place("a")
