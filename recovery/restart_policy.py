"""Whether a failed job starts again, and when: a pure function of what the log says and the configuration."""

from __future__ import annotations

import random

from ett.recovery.config import RecoveryConfig
from ett.restart import AttemptFacts, RestartDecision


def decide(
    attempts: tuple[AttemptFacts, ...], config: RecoveryConfig, *, jitter: float | None = None
) -> RestartDecision:
    """Decide what follows the last of `attempts`, the attempts of this launch in order; the last one failed.

    The first restart after progress is immediate. From the second failure in a row without a new commit on, the wait
    doubles from `backoff_s` to `max_backoff_s`, times a random 0.5 to 1.5 so that a fleet does not come back at once.

    Args:
        jitter: a number from 0 to 1 in place of the random one.
    """
    fruitless = _trailing_without_commit(attempts)
    num_restarts = len(attempts) - 1
    if config.max_restarts == 0:
        return _give_up("no_restarts", "restarts are off (--max-restarts 0)")
    if attempts[-1].is_unkillable:
        return _give_up("unkillable", "a process hangs in the kernel and keeps its device; restart the host")
    if attempts[-1].is_final:
        return _give_up("final_error", "another attempt would meet the same error")
    if _is_same_user_error_twice(attempts):
        return _give_up("same_user_error", "the same error of the program ended two attempts in a row")
    if fruitless >= config.max_attempts_without_commit:
        return _give_up("no_commit", f"{fruitless} attempts in a row ended without a new checkpoint")
    if num_restarts >= config.max_restarts:
        return _give_up("budget", f"all {config.max_restarts} restarts of this launch are spent")
    delay_s = _backoff_s(fruitless, config, random.random() if jitter is None else jitter)
    why = f"restart {num_restarts + 1} of {config.max_restarts}"
    return RestartDecision(restart=True, delay_s=delay_s, rule="restart", why=why)


def _trailing_without_commit(attempts: tuple[AttemptFacts, ...]) -> int:
    count = 0
    for facts in reversed(attempts):
        if facts.reason != "failed" or facts.has_new_commit:
            break
        count += 1
    return count


def _is_same_user_error_twice(attempts: tuple[AttemptFacts, ...]) -> bool:
    if len(attempts) < 2:
        return False
    before, last = attempts[-2:]
    is_same = last.signature != "" and last.signature == before.signature
    return is_same and last.failure_class == before.failure_class == "user" and not last.has_new_commit


def _backoff_s(fruitless: int, config: RecoveryConfig, jitter: float) -> float:
    if fruitless < 2:
        return 0.0
    doublings = min(fruitless - 2, 30)
    return float(min(config.max_backoff_s, config.backoff_s * 2**doublings * (0.5 + jitter)))


def _give_up(rule: str, why: str) -> RestartDecision:
    return RestartDecision(restart=False, delay_s=0.0, rule=rule, why=why)
