"""When a job was up and when it failed, from the log that its supervisors wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ett.clock import Clock
from ett.event_log import EventWriter
from ett.uptime import Stretch, read_stretches


class HandClock:
    def __init__(self) -> None:
        self.now_s = 0

    def wall_ns(self) -> int:
        return self.now_s * 10**9

    def mono_ns(self) -> int:
        return self.now_s * 10**9


class Log:
    """A supervisor's file and its ranks', written at times that the test gives."""

    def __init__(self, events: Path) -> None:
        self.events, self.clock = events, HandClock()
        self.writer = self.open()

    def open(self) -> EventWriter:
        clock: Clock = self.clock
        return EventWriter(self.events / "0", "sup", {"job": "j"}, clock=clock, wait_s=None)

    def say(self, at_s: int, ev: str, att: int, gen: int = 0, **fields: object) -> None:
        self.clock.now_s = at_s
        self.writer.emit(ev, att=att, gen=gen, **fields)

    def train(self, attempt: int) -> Path:
        writer = EventWriter(self.events / str(attempt), "r0", {"job": "j", "att": attempt, "rank": 0})
        writer.emit("step", samples=1, step=1, b_mono=0, e_mono=1)
        (path,) = (self.events / str(attempt)).glob("r0-*")
        return path


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_no_log_has_no_stretch(tmp_path: Path) -> None:
    assert read_stretches(tmp_path) == ()


@pytest.mark.parametrize(
    ("reason", "has_failed"), [("failed", True), ("preempted", False), ("suspended", False), ("completed", False)]
)
def test_a_stop_that_was_announced_is_no_failure(log: Log, reason: str, has_failed: bool) -> None:
    log.train(1)
    log.say(100, "attempt_started", 1)
    log.say(400, "attempt_ended", 1, reason=reason)
    assert read_stretches(log.events) == (Stretch(100, 400, has_failed),)


def test_what_dies_before_its_first_step_has_lost_nothing(log: Log) -> None:
    log.say(100, "attempt_started", 1)
    log.say(110, "attempt_ended", 1, reason="failed")
    assert read_stretches(log.events) == (Stretch(100, 110, has_failed=False),)


def test_the_time_between_attempts_is_in_no_stretch(log: Log) -> None:
    for attempt, began in ((1, 0), (2, 5000)):
        log.train(attempt)
        log.say(began, "allocated", attempt)
        log.say(began + 10, "attempt_started", attempt)
        log.say(began + 60, "attempt_ended", attempt, reason="failed")
    log.say(9000, "attempt_started", 3)  # the one that asks
    assert read_stretches(log.events) == (Stretch(10, 60, True), Stretch(5010, 5060, True))


def test_a_rank_that_is_replaced_alone_is_a_failure_of_the_attempt(log: Log) -> None:
    log.train(1)
    log.say(0, "attempt_started", 1)
    log.say(50, "fault", 1)
    log.say(55, "restart_decision", 1, scope="inprocess")
    log.say(80, "fault", 1, gen=1)
    log.say(90, "attempt_ended", 1, gen=1, reason="failed")
    assert read_stretches(log.events) == (Stretch(0, 50, True), Stretch(55, 90, True))


def test_an_end_that_nobody_saw_was_when_the_ranks_last_wrote(log: Log) -> None:
    """The host was lost at 300; somebody launched the job again a day later."""
    path = log.train(1)
    os.utime(path, (300, 300))
    log.say(0, "attempt_started", 1)
    log.say(86_400, "attempt_ended", 1, reason="failed", inferred=True)
    assert read_stretches(log.events) == (Stretch(0, 300, has_failed=True),)
