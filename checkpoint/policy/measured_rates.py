"""What the cost model needs of the world, as measured so far: rates, the exposed share of writing, failures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ett.checkpoint.policy.io_cost import IoCost
from ett.uptime import Stretch


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRatio:
    """One sum over another, as of late: what was seen counts half after `half_life` more of the lower sum.

    The prior counts as if it had just been seen for `prior_weight` of the lower sum, always.
    """

    prior: float
    prior_weight: float
    half_life: float
    lowest: float
    highest: float
    above: float = 0.0
    below: float = 0.0

    def after(self, above: float, below: float) -> MeasuredRatio:
        """Return the ratio with one more measurement; nothing below measures nothing."""
        if below <= 0:
            return self
        kept = 0.5 ** (below / self.half_life)
        return replace(self, above=self.above * kept + above, below=self.below * kept + below)

    @property
    def value(self) -> float:
        ratio = (self.prior * self.prior_weight + self.above) / (self.prior_weight + self.below)
        return min(self.highest, max(self.lowest, ratio))


# Until something was measured: a disk of 1 GB/s, a tenth of writing exposed, a failure in four hours.
WRITE_RATE = MeasuredRatio(prior=1e9, prior_weight=1, half_life=60, lowest=1e6, highest=1e12)  # bytes per second
READ_RATE = MeasuredRatio(prior=1e9, prior_weight=1, half_life=60, lowest=1e6, highest=1e12)
EXPOSED = MeasuredRatio(prior=0.1, prior_weight=1, half_life=60, lowest=0.01, highest=1)  # stall s over writing s
PRIOR_MTBF_S, MTBF_MEMORY_S = 4 * 3600.0, 7 * 86400.0
SHORTEST_MTBF_S, LONGEST_MTBF_S = 60.0, 90 * 86400.0


def mtbf_s(stretches: Sequence[Stretch], now_s: float) -> float:
    """Return the mean time between a job's failures, as one who saw one failure in PRIOR_MTBF_S before would expect it.

    Args: stretches: when the job was up, on the clock of now_s; a failure, and an hour without one, count less the
    longer ago they are, to a third after MTBF_MEMORY_S. The hours between stretches are nothing either way.
    """
    watched_s = MTBF_MEMORY_S * sum(_weight(each.ended_s, now_s) - _weight(each.began_s, now_s) for each in stretches)
    num_failures = sum(_weight(each.ended_s, now_s) for each in stretches if each.has_failed)
    return min(LONGEST_MTBF_S, max(SHORTEST_MTBF_S, (PRIOR_MTBF_S + watched_s) / (1 + num_failures)))


def _weight(at_s: float, now_s: float) -> float:
    return math.exp(-max(0.0, now_s - at_s) / MTBF_MEMORY_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRates:
    """What a job has seen of its store and of itself."""

    write: MeasuredRatio = WRITE_RATE
    read: MeasuredRatio = READ_RATE
    exposed: MeasuredRatio = EXPOSED
    mtbf_s: float = PRIOR_MTBF_S

    def after_save(self, *, num_bytes: float, write_s: float, stall_s: float) -> MeasuredRates:
        """Args: write_s: for how long bytes were being written. stall_s: of it, what training waited."""
        exposed = self.exposed.after(min(stall_s, write_s), write_s)
        return replace(self, write=self.write.after(num_bytes, write_s), exposed=exposed)

    def after_restore(self, *, num_bytes: float, read_s: float) -> MeasuredRates:
        return replace(self, read=self.read.after(num_bytes, read_s))

    def io_cost(self, interval_s: float) -> IoCost:
        return IoCost.of_rates(
            write_bytes_per_s=self.write.value,
            exposed=self.exposed.value,
            read_bytes_per_s=self.read.value,
            interval_s=interval_s,
            mtbf_s=self.mtbf_s,
        )

    def most_records(self, record_bytes: int, interval_s: float, share: float) -> float:
        """Return how many records may be written in an interval if a share of the store's time is there for them."""
        return self.write.value * interval_s * share / record_bytes
