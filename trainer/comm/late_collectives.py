"""Collectives of a group that is still being joined, for what needs only rank and world size to be built."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ett.trainer.comm.collectives import Collectives, PassedOnCollectives


class LateCollectives(PassedOnCollectives):
    """Implements `ett.trainer.comm.collectives.Collectives`; the first call needs the group.

    Args: joined: returns the group's collectives; asked once, at the first call.
    """

    def __init__(self, rank: int, world_size: int, joined: Callable[[], Collectives]) -> None:
        self.rank, self.world_size, self._joined = rank, world_size, joined

    @cached_property
    def _group(self) -> Collectives:  # type: ignore[override]  # it can be set, as the attribute can
        return self._joined()
