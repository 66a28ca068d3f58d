"""How often the job fails, as far as its event log tells: the same for all ranks, across its restarts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.policy.measured_rates import mtbf_s
from ett.checkpoint.ranks import Ranks, on_rank_zero
from ett.checkpoint.run_record import RunRecord
from ett.clock import Clock
from ett.errors import EttError
from ett.event_schema import NS
from ett.uptime import Stretch, read_stretches

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """Stretches of the job that have ended, and the one that this process is in; seconds of its monotonic clock."""

    began_s: float  # of this process
    past: tuple[Stretch, ...] = ()

    def mtbf_s(self, now_s: float) -> float:
        """Return the time between failures to expect, a prior of hours included (`measured_rates.mtbf_s`)."""
        return mtbf_s((*self.past, Stretch(self.began_s, now_s, has_failed=False)), now_s)

    @property
    def num_failures(self) -> int:
        return sum(each.has_failed for each in self.past)

    def up_s(self, now_s: float) -> float:
        """Return for how long the job has been seen up."""
        return now_s - self.began_s + sum(each.ended_s - each.began_s for each in self.past)


def read_failures(run: RunRecord, ranks: Ranks, clock: Clock) -> FailureHistory:
    """Return what rank 0 finds in the job's log, on every rank; collective. A job without a log has no past.

    A log that cannot be read is said once and taken for none: it must not keep a job from training.
    """

    def ages() -> Json:
        try:
            found = read_stretches(Path(run.job_dir) / "events") if run.job_dir else ()
        except (EttError, OSError) as err:
            log.warning("how often this job fails is not known: %s", err)
            found = ()
        now_s = clock.wall_ns() / NS
        return [[now_s - each.began_s, now_s - each.ended_s, each.has_failed] for each in found]

    past: Sequence[Json] = on_rank_zero(ranks, ages)
    now_s = clock.mono_ns() / NS
    stretches = (Stretch(now_s - began, now_s - ended, has_failed=failed) for began, ended, failed in past)
    return FailureHistory(now_s, tuple(stretches))
