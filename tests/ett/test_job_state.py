"""`ett ls` says of a job without an end what became of it: running, waiting for its scheduler, put aside, or lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ett.accounting import account
from ett.event_reader import read_folder
from ett.job_state import state_of

EPOCH_S = 1_900_000_000
SUBMITTED = {"ev": "job_submitted", "t": 0}
STARTED = {"ev": "attempt_started", "att": 1, "t": 1}
STEPS = {"ev": "steps", "att": 1, "src": "r0", "t0": 2, "n": 4, "dt": 1, "c0": 0}


def ended(reason: str) -> dict[str, Any]:
    return {"ev": "attempt_ended", "att": 1, "t": 10, "reason": reason}


@pytest.mark.parametrize(
    ("events", "asked_at_s", "state"),
    [
        ([SUBMITTED], 5, "queued"),
        ([SUBMITTED, STARTED, STEPS], 20, "running"),
        ([SUBMITTED, STARTED, STEPS], 500, "lost"),
        ([SUBMITTED, STARTED, STEPS, ended("preempted")], 20, "queued"),
        ([SUBMITTED, STARTED, STEPS, ended("preempted")], 500, "suspended"),
        ([SUBMITTED, STARTED, STEPS, ended("suspended")], 20, "suspended"),
        ([SUBMITTED, STARTED, STEPS, ended("failed")], 20, "running"),
        ([SUBMITTED, STARTED, STEPS, ended("failed")], 500, "lost"),
    ],
)
def test_a_job_without_an_end_has_a_state(
    tmp_path: Path,
    write_case: Callable[[Any, Path], list[str]],
    events: list[dict[str, Any]],
    asked_at_s: int,
    state: str,
) -> None:
    write_case({"id": "J", "events": events}, tmp_path)
    found = account(read_folder(tmp_path), as_of_ns=(EPOCH_S + asked_at_s) * 10**9)
    assert found is not None
    assert state_of(found) == state
