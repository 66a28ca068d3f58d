from __future__ import annotations

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


@given(st.lists(FACTS, min_size=1, max_size=20).map(tuple), st.integers(0, 6), st.floats(0, 1))
def test_restarts_never_exceed_their_budget_and_waits_their_limit(
    attempts: tuple[AttemptFacts, ...], max_restarts: int, jitter: float
) -> None:
    decision = decide(attempts, RecoveryConfig(max_restarts=max_restarts, max_backoff_s=8.0), jitter=jitter)
    assert not decision.restart or len(attempts) <= max_restarts
    assert 0 <= decision.delay_s <= 8.0


def test_the_first_restart_is_immediate() -> None:
    decision = decide((failed(),), RecoveryConfig())
    assert (decision.restart, decision.delay_s, decision.why) == (True, 0.0, "restart 1 of 3")


def test_waits_double_while_nothing_new_is_committed() -> None:
    config = RecoveryConfig(max_restarts=9, max_attempts_without_commit=9, backoff_s=1.0, max_backoff_s=5.0)
    waits = [decide((failed(),) * n, config, jitter=0.5).delay_s for n in range(1, 7)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_spreads_a_fleet_over_half_to_one_and_a_half_of_the_wait() -> None:
    config = RecoveryConfig(max_restarts=9)
    assert [decide((failed(),) * 2, config, jitter=j).delay_s for j in (0.0, 1.0)] == [0.5, 1.5]


def test_a_new_commit_makes_the_next_restart_immediate_again() -> None:
    attempts = (failed(), failed(), failed(has_new_commit=True))
    assert decide(attempts, RecoveryConfig(max_restarts=9)).delay_s == 0.0


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
