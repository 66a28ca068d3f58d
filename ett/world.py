"""How many ranks a job goes on with: the places of its host that they hold, and when a place is given up.

A place is what torchrun calls the local rank: it names a device, and stays a process's own when its rank changes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Once may be chance (the port, the memory of the one that died), a second time the device or its host's memory is bad.
FAILED_STARTS = 2


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


class Places:
    """The places of a host over a launch: which of them failed at the start of a rank, and are left out.

    Args:
        num_places: with all of them a launch begins.
        fewest: ranks that the job may go on with.
    """

    def __init__(self, num_places: int, fewest: int) -> None:
        self._num_places, self._fewest = num_places, fewest
        self._failed_starts: Counter[int] = Counter()
        self._left_out: set[int] = set()

    @property
    def may_shrink(self) -> bool:
        return self._fewest < self._num_places

    @property
    def whole(self) -> World:
        """The world of a new attempt: all places, but for those that were left out since the job last made a step."""
        return World(tuple(place for place in range(self._num_places) if place not in self._left_out))

    def note_failure(self, place: int, world: World, *, has_stepped: bool) -> World | None:
        """Return the smaller world to go on with; None: with the same one, or with all places.

        Args:
            has_stepped: the process that failed had made a step.
        """
        if has_stepped:
            self._failed_starts.clear()
            self._left_out.clear()
            return None
        self._failed_starts[place] += 1
        is_given_up = self._failed_starts[place] >= FAILED_STARTS and world.size > self._fewest
        return world.without(place) if is_given_up else None

    def leave_out(self, place: int) -> None:
        self._left_out.add(place)
