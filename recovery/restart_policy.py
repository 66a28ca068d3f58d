"""Whether a failed job starts again, and when: a pure function of what the log says and the configuration."""

from __future__ import annotations

import hashlib

from tenacity import RetryCallState, Retrying, wait_exponential

from ett.recovery.config import RecoveryConfig
from ett.restart import AttemptFacts, RestartDecision


def decide(attempts: tuple[AttemptFacts, ...], config: RecoveryConfig) -> RestartDecision:
    """Decide what follows the last of `attempts`, the attempts of this launch in order; the last one failed.

    Only failures use up the budget, preemptions never do. The first restart after progress is immediate. From the
    second failure in a row without a new commit on, the wait doubles from `backoff_s` to `max_backoff_s`, times 0.5
    to 1.5 by job and attempt so that a fleet does not come back at once; a replayed log gives the same wait.
    """
    last = attempts[-1]
    fruitless = _trailing_without_commit(attempts)
    num_restarts = _num_failures(attempts, config) - 1
    if config.max_restarts == 0:
        return _give_up("no_restarts", "restarts are off (--max-restarts 0)")
    if last.is_unkillable:
        return _give_up("unkillable", "a process hangs in the kernel and keeps its device; restart the host")
    if last.is_final:
        return _give_up("final_error", "another attempt would meet the same error")
    # With a smaller world the cause may be gone: it was always the same place of the host.
    if last.shrinks_to is None and _is_same_user_error_twice(attempts):
        return _give_up("same_user_error", "the same error of the program ended two attempts in a row")
    if fruitless >= config.max_attempts_without_commit:
        return _give_up("no_commit", f"{fruitless} attempts in a row ended without a new checkpoint")
    per = f"within {config.restart_window}" if config.has_restart_window else "of this launch"
    if num_restarts >= config.max_restarts:
        return _give_up("budget", f"all {config.max_restarts} restarts {per} are spent")
    why = f"restart {num_restarts + 1} of {config.max_restarts}" + (f" {per}" if config.has_restart_window else "")
    rule = "restart"
    if last.shrinks_to is not None:
        rule = "shrink"
        why += (
            f" with {last.shrinks_to} ranks, since local rank {last.local_rank} failed repeatedly before its first step"
        )
    delay_s = _backoff_s(fruitless, last, config)
    return RestartDecision(restart=True, delay_s=delay_s, rule=rule, why=why, num_fruitless=fruitless)


def _num_failures(attempts: tuple[AttemptFacts, ...], config: RecoveryConfig) -> int:
    """Failures that count against max_restarts: those of the window that ends with the last one."""
    oldest_s = attempts[-1].ended_unix_s - config.restart_window_s
    return sum(facts.reason == "failed" and facts.ended_unix_s >= oldest_s for facts in attempts)


def _trailing_without_commit(attempts: tuple[AttemptFacts, ...]) -> int:
    """Failed attempts at the end that committed nothing new; a preempted one among them says nothing either way."""
    count = 0
    for facts in reversed(attempts):
        if facts.has_new_commit:
            break
        count += facts.reason == "failed"
    return count


def _is_same_user_error_twice(attempts: tuple[AttemptFacts, ...]) -> bool:
    failed = [facts for facts in attempts if facts.reason == "failed"]
    if len(failed) < 2:
        return False
    before, last = failed[-2:]
    is_same = last.signature != "" and last.signature == before.signature
    return is_same and last.failure_class == before.failure_class == "user" and not last.has_new_commit


def _backoff_s(fruitless: int, last: AttemptFacts, config: RecoveryConfig) -> float:
    if fruitless < 2:
        return 0.0
    # tenacity's own jitter draws a random number, which no replay gives again.
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = fruitless - 1
    wait_s = wait_exponential(multiplier=config.backoff_s, max=config.max_backoff_s)(state)
    return float(min(config.max_backoff_s, wait_s * (0.5 + _fraction(f"{last.job} {last.attempt} {last.gen}"))))


def _fraction(text: str) -> float:
    """Return a number from 0 to 1 that looks random and is the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _give_up(rule: str, why: str) -> RestartDecision:
    return RestartDecision(restart=False, delay_s=0.0, rule=rule, why=why)
