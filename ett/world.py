"""How many ranks a job goes on with: the places of its host that they hold, and when a place is given up.

A place is what torchrun calls the local rank: it names a device, and stays a process's own when its rank changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ett.restart import AttemptFacts

# Once may be chance (the port, the memory of the one that died), a second time the device or its host's memory is bad.
FAILED_STARTS = 2
_MOST_COMPILE_WORKERS = 32  # torch's own limit


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of one generation, 0 to size - 1: rank k holds `places[k]`, in ascending order."""

    places: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.places)

    def rank_at(self, place: int) -> int:
        return self.places.index(place)

    def without(self, place: int) -> World:
        return World(tuple(other for other in self.places if other != place))

    def environ_at(self, place: int) -> dict[str, str]:
        """Return what a process at that place must be told of its world; LOCAL_RANK and its device stay."""
        rank, size = str(self.rank_at(place)), str(self.size)
        return {
            "RANK": rank,
            "ROLE_RANK": rank,
            "WORLD_SIZE": size,
            "ROLE_WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
        }


def compile_workers(num_cores: int, num_ranks: int) -> int:
    """Return how many processes each of a host's ranks may compile in: all of them begin at the same moment.

    torch gives each rank as many as there are cores, 32 at most.
    """
    return max(1, min(_MOST_COMPILE_WORKERS, num_cores // num_ranks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """The places of a host as a launch has found them: which failed at the start of a rank, and are left out."""

    num_places: int  # with all of them a launch begins
    fewest: int  # ranks that the job may go on with
    failed_starts: tuple[int, ...] = ()  # places, one for each start that failed since the job last made a step
    left_out: frozenset[int] = frozenset()

    @property
    def may_shrink(self) -> bool:
        return self.fewest < self.num_places

    @property
    def whole(self) -> World:
        """The world of a new attempt: all places, but for those that were left out since the job last made a step."""
        return World(tuple(place for place in range(self.num_places) if place not in self.left_out))

    def smaller_world(self, place: int, world: World) -> World | None:
        """Return the world to go on with after another rank at `place` failed before its first step; None: the same."""
        is_given_up = self.failed_starts.count(place) + 1 >= FAILED_STARTS and world.size > self.fewest
        return world.without(place) if is_given_up else None

    def after(self, failure: AttemptFacts) -> Places:
        """Return what is known of the places once a rank has failed and the job has gone on.

        Where it had made a step all of them may be well again: the next attempt begins with all.
        """
        assert failure.local_rank is not None
        if failure.has_stepped:
            return Places(num_places=self.num_places, fewest=self.fewest)
        left_out = self.left_out if failure.shrinks_to is None else self.left_out | {failure.local_rank}
        return replace(self, failed_starts=(*self.failed_starts, failure.local_rank), left_out=left_out)


def places_after(lives: Iterable[AttemptFacts], *, num_places: int, fewest: int) -> Places:
    """Return what a launch knows of its places: a pure function of its log.

    Args: lives: as the log tells them, in order; of one process that failed there may be two, and it failed once.
    """
    places = Places(num_places=num_places, fewest=fewest)
    seen: set[tuple[int, int]] = set()
    for facts in lives:
        is_told = facts.pid and facts.local_rank is not None
        if is_told and facts.reason == "failed" and (facts.attempt, facts.pid) not in seen:
            seen.add((facts.attempt, facts.pid))
            places = places.after(facts)
    return places
