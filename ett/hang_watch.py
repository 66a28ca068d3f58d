"""The supervisor's eye on progress: reads the ranks' logs, asks the hang policy, takes stacks before anyone acts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ett.hang import Hang, HangPolicy
from ett.job_folder import JobFolder
from ett.process_identity import ProcessIdentity
from ett.rank_progress import ProgressLog
from ett.restart import RecoverySettings
from ett.seams import SEAMS, load
from ett.stack_dumps import Stacks, dump_stacks, stacks_name, state_words

POLL_INTERVAL_S = 0.5


class HangWatch:
    """Watches one attempt of a job."""

    def __init__(self, folder: JobFolder, attempt: int, recovery: RecoverySettings) -> None:
        self._folder, self._attempt, self._recovery = folder, attempt, recovery
        self._policy: HangPolicy = load(SEAMS["hang_policy"])
        self._log = ProgressLog(folder.events / str(attempt))
        self._next_s = 0.0

    def poll(self, workers: Mapping[int, ProcessIdentity], flush: Callable[[], bool]) -> Hang | None:
        """Return the rank that hangs, with the stacks of all live ranks on the disk; None where nobody does.

        Args:
            flush: True once all that the ranks said is in their files. Where the disk is stuck nobody is judged.
        """
        now_s = time.monotonic()
        if self._recovery.is_hang_off or now_s < self._next_s:
            return None
        self._next_s = now_s + POLL_INTERVAL_S
        self._log.poll(now_s)
        alive = {rank: identity for rank, identity in workers.items() if identity.is_alive}
        progress = self._log.progress(alive)
        if self._policy(progress, self._recovery) is None or not flush():
            return None
        self._log.poll(time.monotonic())
        hang = self._policy(self._log.progress(alive), self._recovery)
        if hang is None:
            return None
        stacks = dump_stacks(self._folder.logs(self._attempt), {rank: who.pid for rank, who in alive.items()})
        return self._with_evidence(hang, stacks)

    def forget_empty_stacks(self) -> None:
        """Remove the files into which no rank had to write."""
        for path in self._folder.logs(self._attempt).glob(stacks_name(0).replace("0", "*")):
            if not path.stat().st_size:
                os.unlink(path)

    def _with_evidence(self, hang: Hang, stacks: Mapping[int, Stacks]) -> Hang:
        """Name the rank that the others wait for: one that the kernel holds, else one that is in no collective.

        All ranks of a collective stop within one poll, after the same step: their logs alone cannot tell who was first.
        """
        ranks = self._log.progress(stacks)
        rank = min(
            ranks,
            key=lambda r: (
                not state_words(stacks[r.rank].state),
                stacks[r.rank].waits_for_peers,
                r.num_steps == 0,  # it may take part without recording its steps
                r.last_step or 0,
                r.rank != hang.rank,
            ),
        )
        held = state_words(stacks[rank.rank].state)
        return replace(
            hang,
            rank=rank.rank,
            idle_s=rank.idle_s,
            phase=rank.spans[-1] if rank.spans else "step",
            state=held,
            failure_class="infra" if held else "unknown",
            stacks=tuple(f"logs/{self._attempt}/{found.file}" for found in stacks.values()),
        )
