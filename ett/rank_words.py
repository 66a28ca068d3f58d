"""What the ranks of an attempt said last, in the files that their output goes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ett.failure import keep_tail, last_lines, names_lost_peer, stated_cause
from ett.world import World


@dataclass(frozen=True, slots=True)
class RankWords:
    """Those of one attempt, by the places of the host that its ranks hold.

    Args:
        logs: the attempt's folder.
        world: its first one: a rank's files keep the name that they began with.
    """

    logs: Path
    world: World

    def last_of(self, place: int) -> list[str]:
        """Return a rank's last lines."""
        rank = self.world.rank_at(place)
        return last_lines(self.logs / f"rank{rank}.err", self.logs / f"rank{rank}.log")

    def keep(self, lines: list[str]) -> str:
        """Put lines into a file of their own and return its name in the job's folder; "" where there is none."""
        name = keep_tail(self.logs, lines) if lines else ""
        return f"logs/{self.logs.name}/{name}" if name else ""

    def only_lost_a_peer(self, place: int) -> bool:
        """Return whether a rank named an error that says no more than that another one is gone."""
        return names_lost_peer(stated_cause(self.last_of(place)))

    def state_an_error(self, place: int) -> bool:
        """Return whether a rank named an error, other than that a peer is gone."""
        stated = stated_cause(self.last_of(place))
        return bool(stated) and not names_lost_peer(stated)
