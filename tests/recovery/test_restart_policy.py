from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.recovery.config import RecoveryConfig
from ett.recovery.restart_policy import decide
from ett.restart import AttemptFacts

FACTS = st.builds(
    AttemptFacts,
    attempt=st.integers(1, 100),
    reason=st.sampled_from(["failed", "preempted"]),
    failure_class=st.sampled_from(["user", "infra", "unknown"]),
    signature=st.sampled_from(["", "a", "b"]),
    has_new_commit=st.booleans(),
)


def failed(**fields: object) -> AttemptFacts:
    return AttemptFacts(attempt=1, reason="failed", **fields)  # type: ignore[arg-type]


@pytest.mark.slow
@given(st.lists(FACTS, min_size=1, max_size=20).map(tuple), st.integers(0, 6))
def test_restarts_never_exceed_their_budget_and_waits_their_limit(
    attempts: tuple[AttemptFacts, ...], max_restarts: int
) -> None:
    attempts = (*attempts, failed())
    decision = decide(attempts, RecoveryConfig(max_restarts=max_restarts, max_backoff_s=8.0))
    assert not decision.restart or sum(facts.reason == "failed" for facts in attempts) <= max_restarts
    assert 0 <= decision.delay_s <= 8.0
    assert decision == decide(attempts, RecoveryConfig(max_restarts=max_restarts, max_backoff_s=8.0))


def test_the_first_restart_is_immediate() -> None:
    decision = decide((failed(),), RecoveryConfig())
    assert (decision.restart, decision.delay_s, decision.why) == (True, 0.0, "restart 1 of 3")


def test_waits_double_while_nothing_new_is_committed() -> None:
    config = RecoveryConfig(max_restarts=9, max_attempts_without_commit=9, backoff_s=1.0, max_backoff_s=20.0)
    waits = [decide((failed(),) * n, config).delay_s for n in range(1, 9)]
    assert waits[0] == 0.0
    assert [wait / waits[1] for wait in waits[1:5]] == [1, 2, 4, 8]
    assert waits[-1] == pytest.approx(20 * waits[1])


def test_failures_without_a_commit_are_counted_also_where_nobody_waits_for_them() -> None:
    config = RecoveryConfig(backoff_s=0.0)
    decisions = [decide(lives, config) for lives in ((failed(),), (failed(),) * 2, (failed(has_new_commit=True),))]
    assert [(decision.delay_s, decision.num_fruitless) for decision in decisions] == [(0.0, 1), (0.0, 2), (0.0, 0)]


def test_waits_of_a_fleet_spread_over_half_to_one_and_a_half_and_a_replayed_log_gives_the_same() -> None:
    config = RecoveryConfig(max_restarts=9)
    waits = [decide((failed(job=f"job-{n}"),) * 2, config).delay_s for n in range(200)]
    assert 0.5 <= min(waits) < 0.6
    assert 1.4 < max(waits) <= 1.5
    assert waits[7] == decide((failed(job="job-7"),) * 2, config).delay_s


def test_failures_before_the_window_are_forgotten() -> None:
    config = RecoveryConfig(max_restarts=2, restart_window="1h")
    weekly = tuple(failed(ended_unix_s=7.0 * 86_400 * n, has_new_commit=True) for n in range(50))
    assert decide(weekly, config).why == "restart 1 of 2 within 1h"
    burst = (*weekly, *(failed(ended_unix_s=weekly[-1].ended_unix_s + n, has_new_commit=True) for n in (60, 120)))
    assert decide(burst[:-1], config).restart
    assert decide(burst, config).why == "all 2 restarts within 1h are spent"


def test_a_new_commit_makes_the_next_restart_immediate_again() -> None:
    attempts = (failed(), failed(), failed(has_new_commit=True))
    assert decide(attempts, RecoveryConfig(max_restarts=9)).delay_s == 0.0


PREEMPTED = AttemptFacts(attempt=1, reason="preempted")
USER = {"failure_class": "user", "signature": "x"}


@pytest.mark.parametrize(
    ("row", "attempts", "rule"),
    [
        # A checkpoint that began and never committed is no progress, in whatever session it began.
        (1, [failed(), failed(), failed(), failed(), failed()], "no_commit"),
        # The worker's own error in the poll of a preemption is a failure of its own class, and of its own budget.
        (34, [failed(**USER), PREEMPTED, failed(**USER)], "same_user_error"),
        (35, [PREEMPTED] * 20 + [failed()], "restart"),
        (37, [failed()] + [PREEMPTED] * 20 + [failed(has_new_commit=True)], "restart"),
        (37, [failed(), PREEMPTED, failed(), failed(has_new_commit=True), failed()], "budget"),
        (32, [failed(is_unkillable=True)], "unkillable"),
    ],
)
def test_pitfalls_of_other_restart_policies(row: int, attempts: list[AttemptFacts], rule: str) -> None:
    """Rows of the table in docs/supervisor.md."""
    assert decide(tuple(attempts), RecoveryConfig(max_restarts=3)).rule == rule, f"row {row}"


def test_attempts_that_commit_nothing_come_to_an_end() -> None:
    config = RecoveryConfig(max_restarts=99, max_attempts_without_commit=4)
    decisions = [decide((failed(),) * n, config) for n in range(1, 5)]
    assert [decision.restart for decision in decisions] == [True, True, True, False]
    assert decisions[-1].rule == "no_commit"


def test_the_same_error_of_the_program_twice_is_final() -> None:
    same = failed(failure_class="user", signature="x")
    assert decide((same, same), RecoveryConfig()).rule == "same_user_error"


def test_the_same_error_after_progress_is_not_final() -> None:
    attempts = (
        failed(failure_class="user", signature="x"),
        failed(failure_class="user", signature="x", has_new_commit=True),
    )
    assert decide(attempts, RecoveryConfig()).restart


def test_the_same_kill_twice_is_not_an_error_of_the_program() -> None:
    assert decide((failed(failure_class="infra"),) * 2, RecoveryConfig()).restart


def test_an_error_that_the_program_calls_final_is_not_tried_again() -> None:
    assert decide((failed(failure_class="user", is_final=True),), RecoveryConfig()).rule == "final_error"


def test_no_restarts_means_none() -> None:
    assert decide((failed(),), RecoveryConfig(max_restarts=0)).rule == "no_restarts"


def test_the_same_error_twice_at_one_place_of_the_host_may_go_on_without_it() -> None:
    first = failed(failure_class="user", signature="a")
    attempts = (first, failed(failure_class="user", signature="a", local_rank=1, shrinks_to=2))
    decision = decide(attempts, RecoveryConfig())
    assert (decision.restart, decision.rule) == (True, "shrink")
    assert decision.why.startswith("restart 2 of 3 with 2 ranks, since local rank 1 ")
    assert decide((first, first), RecoveryConfig()).rule == "same_user_error"


def test_a_smaller_world_uses_up_the_budget_like_any_restart() -> None:
    attempts = (failed(), failed(), failed(local_rank=1, shrinks_to=2))
    assert decide(attempts, RecoveryConfig(max_restarts=2)).rule == "budget"
