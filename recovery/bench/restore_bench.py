"""What the parts of restores share: a part's plan, and who restores commits and looks at every bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.spent import Spent, spent
from ett.checkpoint.ranks import SoloRanks
from ett.checkpoint.read_plan import REMOTE_READS
from ett.checkpoint.restore import Restored, restore_newest
from ett.checkpoint.save import SavePlace
from ett.checkpoint.store import Store
from ett.clock import SystemClock
from ett.errors import ThresholdMissed
from ett.recovery.bench.zipf_job import HeldCommit, ZipfJob, ZipfModel

Say = Callable[[str], None]
Detail = dict[str, Any]
OURS = "adaptive"


@dataclass(frozen=True, slots=True)
class RestoreBench:
    """recipe: [restore]. plan: of one of its parts."""

    folder: Path
    recipe: Mapping[str, Any]
    plan: Mapping[str, Any]
    quick: bool
    say: Say

    def sized(self, key: str) -> Any:
        return self.plan[f"quick_{key}" if self.quick else key]

    def job(self, policy: str, **more: Any) -> ZipfJob:
        bound = {"max_live": self.recipe["max_live"]} if policy == OURS else {}
        fields = {"policy": policy, **bound, **more}
        return ZipfJob(self.folder / policy, self.recipe, self.sized("rows"), self.plan["checkpoints"], fields)

    def model(self) -> ZipfModel:
        return ZipfModel(self.recipe, self.sized("rows"))


class Reader:
    """Restores commits into one model, as a new process does but for its imports.

    Attributes:
        read_bytes: of rows, by the last restore.
    """

    def __init__(self, model: ZipfModel) -> None:
        self._model = model
        self.read_bytes = 0

    def restore(self, store: Store, *, reads: int = REMOTE_READS) -> Spent:
        """Args: reads: under way at once."""
        place = SavePlace(store=store, ranks=SoloRanks(), run=QuietRun(), clock=SystemClock(), reads=reads)
        state, found = self._model.state(), list[Restored | None]()
        taken = spent(lambda: found.append(restore_newest(place, state)))
        assert found[0] is not None
        self.read_bytes = found[0].loaded.read_bytes
        return taken

    def check(self, who: str, held: HeldCommit, store: Store, *, reads: int = REMOTE_READS) -> None:
        """Raises: ThresholdMissed: a restore does not bring every bit of what was saved."""
        self._model.forget()
        self.restore(store, reads=reads)
        found = self._model.image()
        wrong = sorted(name for name in held.image if found.get(name) != held.image[name])
        if wrong or found.keys() != held.image.keys():
            raise ThresholdMissed(f"{who}: a restore of step {held.commit.step} brought another {', '.join(wrong)}")
