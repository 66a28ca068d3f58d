"""Who hangs: a pure function of what each rank did last and of the [recovery] section.

Two rules. (1) No live rank that can be judged made progress within the limit of the phase that it is in: a collective
that waits for one peer stops all of them, so the slowest phase decides and one rank's evaluation is no hang of the
others. (2) A rank that took steps made no progress for its limit while another one took steps for as long: in ranks
that do not wait for each other.

A rank can be judged in a step loop (its own limit is `hang_after`) and in a span of a known name (`hang_limits`).
Before its first step, after its last and in spans of names that mean nothing here, nothing tells a hang from work.
"""

from __future__ import annotations

from collections.abc import Sequence

from ett.hang import Hang, RankProgress
from ett.recovery.config import RecoveryConfig
from ett.recovery.hang_limits import OFF, seconds

# "auto": 20 times the longest pause that a step of this attempt has taken so far, within these. A quarter of an hour is
# above the 10 minutes after which NCCL's own watchdog acts and names its collective.
AUTO_TIMES, AUTO_MIN_S, AUTO_MAX_S = 20.0, 900.0, 3600.0
WARM_UP_STEPS = 3


def find_hang(ranks: Sequence[RankProgress], config: RecoveryConfig) -> Hang | None:
    """Return the rank that stopped first among those that hang; None where nobody does."""
    if config.is_hang_off:
        return None
    longest_pause_s = max((rank.longest_pause_s for rank in ranks), default=0.0)
    judged = [(rank, *limit) for rank in ranks if (limit := _limit(rank, config, longest_pause_s)) is not None]
    hanging = [item for item in judged if item[0].idle_s > item[2]]
    if not hanging:
        return None
    if len(hanging) < len(judged):
        hanging = [item for item in hanging if _is_left_behind(*item, others=ranks)]
        if not hanging:
            return None
    rank, phase, limit_s = min(hanging, key=lambda item: stopped_order(item[0]))
    return Hang(rank=rank.rank, idle_s=rank.idle_s, limit_s=limit_s, phase=phase, last_step=rank.last_step)


def stopped_order(rank: RankProgress) -> tuple[int, float, int]:
    """Sort key: the rank that stopped first comes first: fewest steps done, then idle for longest."""
    return (-1 if rank.last_step is None else rank.last_step, -rank.idle_s, rank.rank)


def auto_limit_s(longest_pause_s: float) -> float:
    return min(AUTO_MAX_S, max(AUTO_MIN_S, AUTO_TIMES * longest_pause_s))


def _limit(rank: RankProgress, config: RecoveryConfig, longest_pause_s: float) -> tuple[str, float] | None:
    """Return the phase that a rank is in and how long it may be without progress there; None: it cannot be judged."""
    limits = config.hang_limits
    for span in reversed(rank.spans):
        limit_s = limits.limit_s(span)
        if limit_s is not None:
            return (span, limit_s) if limit_s != OFF else None
    if rank.spans or rank.has_ended_training or not (rank.num_steps or rank.is_in_step):
        return None
    hang_after_s = auto_limit_s(longest_pause_s)
    if config.hang_after != "auto":
        hang_after_s = seconds(config.hang_after, "recovery.hang_after")
    if rank.num_steps < WARM_UP_STEPS:
        hang_after_s = max(hang_after_s, limits.limit_s("compile") or OFF)
    return ("step", hang_after_s) if hang_after_s != OFF else None


def _is_left_behind(rank: RankProgress, phase: str, limit_s: float, others: Sequence[RankProgress]) -> bool:
    newest_step_s = min(
        (other.step_idle_s for other in others if other.rank != rank.rank and other.num_steps), default=OFF
    )
    return phase == "step" and rank.idle_s - newest_step_s > limit_s
