from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ett.event_log import EventWriter
from ett.rank_progress import LONGEST_TICK_S, ProgressLog
from ett.ring_drain import RingDrain
from ett.tracker import Run, RunIdentity


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path, rank=3))


@pytest.fixture
def log(tmp_path: Path, run: Run) -> ProgressLog:
    log = ProgressLog(tmp_path / "events" / "1")
    log.poll(100.0)
    return log


def idle_s(log: ProgressLog, now_s: float) -> float:
    log.poll(now_s)
    return log.progress([3])[0].idle_s


def test_steps_and_commits_are_progress(log: ProgressLog, run: Run) -> None:
    assert idle_s(log, 102.0) == 2.0
    with run.step(samples=1):
        pass
    assert idle_s(log, 103.0) == 0.0
    emitter = Run(RunIdentity(job="j", attempt=1, job_dir=run.job_dir, rank=0))
    emitter.committed(1, 1, "file:///x")
    log.poll(104.0)
    assert [(r.rank, r.idle_s, r.num_steps) for r in log.progress([0, 3])] == [(0, 0.0, 0), (3, 1.0, 1)]


def test_heartbeats_and_work_beside_training_are_no_progress(log: ProgressLog, run: Run) -> None:
    run.heartbeat()
    run.emit("ckpt_upload", id="x")
    with run.span("upload", blocking=False):
        pass
    assert idle_s(log, 102.0) == 2.0


def test_open_blocking_spans_are_known_by_name_innermost_last(log: ProgressLog, run: Run) -> None:
    with run.span("eval"), run.span("mine"), run.span("beside", blocking=False):
        log.poll(101.0)
        assert log.progress([3])[0].spans == ("eval", "mine")
    log.poll(102.0)
    assert log.progress([3])[0].spans == ()


def test_a_line_that_is_still_being_written_waits(tmp_path: Path, log: ProgressLog, run: Run) -> None:
    (path,) = (tmp_path / "events" / "1").glob("r3-*")
    with run.step(samples=1):
        pass
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert idle_s(log, 101.0) == 0.0  # step_begin
    assert log.progress([3])[0].num_steps == 0
    path.write_bytes(whole)
    log.poll(102.0)
    assert (log.progress([3])[0].num_steps, log.progress([3])[0].last_step) == (1, 1)


def test_time_that_the_supervisor_did_not_live_through_is_nobodys_idleness(log: ProgressLog, run: Run) -> None:
    assert idle_s(log, 100_000.0) == LONGEST_TICK_S


def test_the_longest_pause_between_steps_is_remembered_without_spans(log: ProgressLog, run: Run) -> None:
    now_s = 100.0
    for pause_s in (4.0, 1.0, 3.0, 0.5):
        now_s += pause_s
        with run.step(samples=1):
            pass
        log.poll(now_s)
    assert log.progress([3])[0].longest_pause_s == 3.0  # the 4 s before the first step is the start-up


def test_ranks_that_recorded_nothing_or_are_gone_are_left_out(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path / "nowhere")
    log.poll(1.0)
    assert log.progress([0, 1]) == []


def test_spans_of_another_writer_that_say_nothing_are_no_progress(tmp_path: Path, log: ProgressLog, run: Run) -> None:
    EventWriter(tmp_path / "events" / "1", "r3", {"job": "j", "att": 1}).emit("span_begin", name=5)
    assert idle_s(log, 102.0) == 2.0


def test_a_rank_whose_records_wait_for_a_stuck_disk_goes_on(tmp_path: Path) -> None:
    drain = RingDrain(tmp_path)
    drain.start()
    run = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path, rank=3, rings=Path(drain.environ["ETT_RING"])))
    drain.flush()
    log = ProgressLog(tmp_path / "events" / "1")
    log.poll(100.0)
    answer = threading.Event()
    drain.later(answer.wait)
    with run.step(samples=1):
        pass
    assert idle_s(log, 102.0) == 0.0
    assert idle_s(log, 103.0) == 1.0  # the same record again is none
    answer.set()
    assert drain.flush()
    assert idle_s(log, 104.0) == 2.0  # nor is it one when it reaches the file
    run.close()
    drain.stop()


def test_a_new_generation_begins_without_the_spans_and_steps_of_the_last(log: ProgressLog, run: Run) -> None:
    with run.step(samples=1):
        pass
    span = run.span("eval")
    span.__enter__()
    run.begin_generation(1, {})
    run.emit("restore", step=1, cursor=1)
    log.poll(101.0)
    assert (log.progress([3])[0].spans, log.progress([3])[0].num_steps) == ((), 0)
