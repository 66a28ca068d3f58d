"""What becomes a point of a histogram: hangs and stragglers, as the log tells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_accounting_properties import account_of

from ett import metric_names as names
from ett.accounting import JobAccount
from ett.collector.job_moments import moments_of
from ett.event_schema import NS

CaseLog = Callable[[dict[str, Any]], Any]


def steps(num_steps: int, slow: float) -> list[dict[str, Any]]:
    """Two ranks whose steps take 1 s; those of rank 1 take `slow` s, and every step begins when both are done."""
    found = []
    for step in range(num_steps):
        begin = 10 + step * max(1.0, slow)
        for rank, took in ((0, 1.0), (1, slow)):
            times = {"b": begin, "e": begin + took}
            found.append({"t": begin + took, "ev": "step", "att": 1, "src": f"r{rank}", "step": step + 1,
                          "c0": step, "c1": step + 1, "world": 2, **times})  # fmt: skip
    return sorted(found, key=lambda event: event["t"])


def job(num_steps: int, slow: float, **ended: Any) -> dict[str, Any]:
    end = 20 + num_steps * max(1.0, slow)
    return {
        "id": "m",
        "events": [
            {"t": 0, "ev": "job_submitted", "src": "sup", "att": 0},
            {"t": 1, "ev": "attempt_started", "src": "sup", "att": 1, "world": 2},
            *steps(num_steps, slow),
            {"t": end, "ev": "attempt_ended", "src": "sup", "att": 1, "reason": "failed", **ended},
            {"t": end + 1, "ev": "job_ended", "src": "sup", "att": 0, "status": "failed"},
        ],
    }


def values(found: JobAccount, metric: str) -> list[int]:
    return [m.value for own in moments_of(found, found.window.end_ns).values() for m in own if m.metric == metric]


@pytest.mark.parametrize(("num_steps", "expected"), [(99, []), (100, [1.5]), (250, [1.5, 1.5])])
def test_a_straggler_is_told_once_for_each_100_steps(num_steps: int, expected: list[float], case_log: CaseLog) -> None:
    case = job(num_steps, slow=3.0)  # the median of 1 s and 3 s is 2 s
    found = values(account_of(case, case_log(case).files()), names.STRAGGLER_RATIO.prometheus)
    assert [value / NS for value in found] == expected


@pytest.mark.parametrize(
    ("ended", "expected"),
    [({"idle_s": 42.5}, [42_500_000_000]), ({}, []), ({"idle_s": "long"}, []), ({"idle_s": -1}, [])],
)
def test_a_hang_is_told_with_the_time_until_it_was_found(
    ended: dict[str, Any], expected: list[int], case_log: CaseLog
) -> None:
    case = job(2, slow=1.0, **ended)
    found = account_of(case, case_log(case).files())
    assert values(found, names.HANG_DETECTION_DURATION.prometheus) == expected
