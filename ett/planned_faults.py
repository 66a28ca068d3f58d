"""The faults of `--chaos` as the supervisor meets them: told to its ranks, and found again in what these recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.failure import RankExit
from ett.job_history import last_step, records_of
from ett.seams import SEAMS, load


@dataclass(frozen=True, slots=True)
class PlannedFaults:
    """Those of one launch. What its ranks recorded has to be in the files of `events`.

    Args: first_attempt: of the launch, as the job counts.
    """

    specs: tuple[str, ...]
    events: Path
    first_attempt: int

    def __str__(self) -> str:
        """What a rank is told."""
        return str(self._plan)

    def have_ended(self, gone: RankExit, attempt: int, gen: int) -> bool:
        """Return whether one of them ended the rank; of a hang, whether of any rank: of the others all wait for one."""
        told = records_of(self.events, "fault_injected", "r*")
        now = [record for record in told if (record.att, record.gen) == (attempt, gen)]
        happened = {record.data.get("fault") for record in now if gone.hang is not None or record.rank == gone.rank}
        return any(fault.may_end_process and str(fault) in happened for fault in self._plan.faults)

    def unfired(self, last_attempt: int) -> list[str]:
        """Return one line for each that never happened."""
        told = records_of(self.events, "fault_injected", "r*")
        happened = {record.data.get("fault") for record in told if record.att >= self.first_attempt}
        lines = []
        for spec, fault in zip(self.specs, self._plan.faults, strict=True):
            if str(fault) not in happened:
                step = last_step(self.events, last_attempt, max(0, fault.rank))
                at = "" if step is None else f" (the job ended at step {step})"
                lines.append(f"chaos: {spec} never fired{at}")
        return lines

    @property
    def _plan(self) -> Any:
        return load(SEAMS["fault_plan"]).parse(self.specs).starting_at(self.first_attempt)
