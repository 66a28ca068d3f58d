"""What the supervisor and the ranks of an attempt tell each other when a generation follows another in one attempt.

`attempts/<n>/generation.json` is the newest generation: its number, its ranks, what their environment must say. A rank
that takes part leaves the empty file `attempts/<n>/gen<g>.rank<k>`. Files, not sockets: a new rank, an old one and a
person all read the same thing, and there is nothing to reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ett.job_folder import read_json, write_json
from ett.world import World

FOLDER_VARIABLE = "ETT_GENERATIONS"  # set where ranks may be started anew within an attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    number: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)  # over what the rank was started with
    places: tuple[int, ...] = ()  # LOCAL_RANK of each rank, in order of ranks; empty in generation 0

    def environ_at(self, place: int) -> dict[str, str]:
        """Return the environment of the rank at that place; of one that has no part in it, what all ranks share."""
        own = World(self.places).environ_at(place) if place in self.places else {}
        return {**self.environ, **own}


class GenerationFolder:
    """The generations of one attempt.

    Args:
        path: the attempt's folder under `attempts/`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def newest(self) -> Generation:
        plain = read_json(self._path / "generation.json")
        number, environ = plain.get("number"), plain.get("environ")
        if not isinstance(number, int) or not isinstance(environ, dict):
            return Generation()
        return Generation(
            number=number,
            environ={str(key): str(value) for key, value in environ.items()},
            places=tuple(map(int, plain.get("places", ()))),
        )

    def announce(self, generation: Generation) -> None:
        write_json(self._path / "generation.json", asdict(generation))

    def join(self, number: int, rank: int) -> None:
        """Say that this rank takes part: it can leave its process group and come back when a peer is lost."""
        self._mark(number, rank).touch()

    def has_joined(self, number: int, rank: int) -> bool:
        return self._mark(number, rank).exists()

    def is_complete(self, generation: Generation) -> bool:
        """Return whether all its ranks take part."""
        return all(self.has_joined(generation.number, rank) for rank in range(len(generation.places)))

    def _mark(self, number: int, rank: int) -> Path:
        return self._path / f"gen{number}.rank{rank}"


def generation_environ(number: int, port: int, worker_environ: Mapping[str, str]) -> dict[str, str]:
    """Return what every rank's environment must say in a generation whose store listens on `port` of this host."""
    kept = ("ETT_RESUME", "ETT_HAS_COMMITTED", "ETT_PARENT_WALL_NS")
    return {"ETT_GEN": str(number), "MASTER_PORT": str(port), **{name: worker_environ[name] for name in kept}}
