"""A live account is the batch answer at each moment, whatever arrives when."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett import log_columns
from ett.accounting import JobAccount, account
from ett.event_reader import EventLog, LogMerger
from ett.event_schema import Record
from ett.live_account import LiveAccount
from ett.report import build_report

NS = 1_000_000_000
pytestmark = pytest.mark.skipif(log_columns.NATIVE is None, reason="the extension is not built")


def record(ev: str, at: int, *, att: int = 1, rank: int | None = None, seq: int, gen: int = 0, **data: Any) -> Record:
    src = "sup" if rank is None else f"r{rank}"
    pid, folder = (1, 0) if rank is None else (10 * att + rank, att)
    return Record(ev, "j", att, gen, src, rank, "h", "b", pid, seq, at, at, f"{folder}/{src}.jsonl", data)


@st.composite
def running_jobs(draw: st.DrawFn) -> list[Record]:
    """Records of a job by the time at which they were written; ticks of one."""
    world = draw(st.integers(1, 4))
    seqs: dict[tuple[int, int | None], int] = {}
    found: list[Record] = []

    def emit(ev: str, at: int, att: int, rank: int | None, **data: Any) -> None:
        gen = data.pop("gen", 0)
        writer = (0 if rank is None else att, rank)
        seq = seqs[writer] = seqs.get(writer, -1) + 1
        found.append(record(ev, at, att=att, rank=rank, seq=seq, gen=gen, **data))

    emit("job_submitted", 0, 0, None)
    now, cursor = 1, 0
    samples = draw(st.integers(0, 4)) == 0
    for att in range(1, draw(st.integers(1, 3)) + 1):
        emit("attempt_started", now, att, None, world=world)
        gen = 0
        if att > 1 and draw(st.integers(0, 3)) == 0:
            emit("cursor_unknown", now, att, draw(st.integers(0, world - 1)), step=0)
        for step in range(draw(st.integers(0, 14))):
            what = draw(st.integers(0, 12))
            if what == 0:
                emit("fault", now, att, None)
                gen += draw(st.integers(0, 1))
                cursor = max(0, cursor - draw(st.integers(0, 3)))
                now += 1
            if what == 1:
                emit("restore", now, att, 0, cursor=cursor, gen=gen)
            for rank in range(world):
                begin, end = now + draw(st.integers(0, 1)), now + 4 + draw(st.integers(0, 2))
                if what == 2:
                    emit("step_begin", begin, att, rank, step=step, b_mono=begin, gen=gen)
                if what == 3 and draw(st.booleans()):
                    continue
                counted = {"samples": 2} if samples else {"c0": cursor, "c1": cursor + 3}
                emit("step", end, att, rank, step=step, b_mono=begin, e_mono=end, gen=gen, **counted)
                if what in (4, 5):
                    emit("span_begin", end, att, rank, id=step, name=draw(st.sampled_from(["eval", "mine"])), gen=gen)
                    if draw(st.integers(0, 3)):
                        emit("span_end", end + draw(st.integers(0, 3)), att, rank, id=step, gen=gen)
                if what == 6:
                    emit("heartbeat", end, att, rank, step=step, dropped=0, gen=gen)
            cursor, now = cursor + 3, now + 7
            if what == 7:
                emit("ckpt_commit", now, att, 0, id=f"c{cursor}", cursor=cursor, tier="remote", gen=gen)
        if draw(st.integers(0, 2)) == 0:
            emit("train_end", now, att, draw(st.integers(0, world - 1)))
        if draw(st.integers(0, 3)):
            emit("attempt_ended", now, att, None, reason=draw(st.sampled_from(["failed", "completed"])))
        now += 3
    if draw(st.booleans()):
        emit("job_ended", now, 0, None, status=draw(st.sampled_from(["succeeded", "failed"])))
    return sorted(found, key=lambda r: r.mono_ns)


ASKED = {
    "records": running_jobs(),
    "lateness": st.sampled_from([0, 0, 2, 9, 1000]),
    "settle": st.sampled_from([0, 3, 10]),
    "seed": st.integers(0, 2**32),
    "as_of": st.integers(0, 40),
}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(**ASKED)
def test_a_question_at_any_moment_has_the_answer_of_the_whole_log(
    everything: Callable[[Any], object], **asked: Any
) -> None:
    check_answers(everything, **asked)


@pytest.mark.campaign  # python -m pytest -m campaign tests/ett/test_live_account.py
@settings(max_examples=3000, deadline=None)
@given(**ASKED)
def test_very_many_questions_have_the_answer_of_the_whole_log(
    everything: Callable[[Any], object], **asked: Any
) -> None:
    check_answers(everything, **asked)


def check_answers(  # noqa: PLR0917 - drawn by hypothesis
    everything: Callable[[Any], object], records: list[Record], lateness: int, settle: int, seed: int, as_of: int
) -> None:
    rng = random.Random(seed)
    arriving = sorted(records, key=lambda r: r.mono_ns + rng.random() * lateness)
    arriving += rng.sample(records, min(3, len(records)))
    live = LiveAccount(settle_s=settle / NS)
    so_far: dict[tuple[str, int], Record] = {}
    for one in arriving:
        assert live.add(one) == ((one.file, one.seq) not in so_far)
        so_far[one.file, one.seq] = one
        if rng.random() < 0.4 or len(so_far) == len(records):
            now = one.mono_ns + as_of
            found = live.account(now)
            merger = LogMerger()
            for known in so_far.values():
                merger.add(known)
            expected = account(merger.log(), as_of_ns=now, cut_at_as_of=False)
            assert found is not None
            assert expected is not None
            # The log's own answer says what is right, records and all.
            assert difference(everything(found)[1:4], everything(expected)[1:4]) is None
            assert build_report(found) == build_report(expected)


def test_a_span_that_ended_hides_no_step_that_was_lost_after_it(everything: Callable[[Any], object]) -> None:
    steps = [(0, 2, 6), (1, 8, 12), (2, 14, 18), (3, 20, 24)]
    records = [record("attempt_started", 1, seq=0, world=2)]
    for rank in (0, 1):
        seqs = count()
        for number, begin, end in steps:
            if (rank, number) != (1, 2):
                records.append(_step(number, begin, end, rank, next(seqs)))
            if number == 0:
                records.append(record("span_begin", 6, rank=rank, seq=next(seqs), id=0, name="eval"))
                records.append(record("span_end", 7, rank=rank, seq=next(seqs), id=0))
    found = _asked_at_each(sorted(records, key=lambda r: r.mono_ns), everything)
    assert any(step.is_recovered for step in found.timelines[0].steps)


def test_a_rank_that_is_late_into_a_generation_changes_what_its_silence_was(
    everything: Callable[[Any], object],
) -> None:
    records = [record("attempt_started", 1, seq=0, world=2)]
    records += [_step(0, 2, 6, rank, 0) for rank in (0, 1)]
    records += [_step(n, 8 + 10 * n, 14 + 10 * n, 0, n, gen=1) for n in (1, 2, 3)]
    records.append(_step(3, 38, 44, 1, 1, gen=1))
    _asked_at_each(records, everything)


def _step(number: int, begin: int, end: int, rank: int, seq: int, *, gen: int = 0) -> Record:
    cursors = {"c0": number, "c1": number + 1}
    return record("step", end, rank=rank, seq=seq, gen=gen, step=number, b_mono=begin, e_mono=end, **cursors)


def _asked_at_each(records: list[Record], everything: Callable[[Any], object]) -> JobAccount:
    """Ask after each record; return the last answer."""
    live = LiveAccount(settle_s=0)
    for index, one in enumerate(records):
        live.add(one)
        found, expected = (
            live.account(one.mono_ns),
            account(EventLog(records[: index + 1]), as_of_ns=one.mono_ns, cut_at_as_of=False),
        )
        assert found is not None
        assert everything(found)[1:4] == everything(expected)[1:4]
    return found


def difference(found: Any, expected: Any) -> object:
    """The first place where two nested answers differ; None: nowhere."""
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)) and len(found) == len(expected):
        return next((d for f, e in zip(found, expected, strict=True) if (d := difference(f, e)) is not None), None)
    return None if found == expected else (found, expected)
