"""What a supervisor knows of the rank that failed first, as the log tells it and as the restart policy judges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ett.failure import RankExit, classify, signature, stated_cause
from ett.restart import AttemptFacts
from ett.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFailure:
    gone: RankExit
    lines: tuple[str, ...] = ()  # its last ones
    tail: str = ""  # the file of the job's folder that keeps them
    cause: str = ""  # a short name of what is known to have ended it
    is_final: bool = False  # the program says that another attempt would meet the same error
    place: int  # of the host
    pid: int = 0  # 0: nobody knows it any more
    has_stepped: bool | None = None  # this and what follows it only where the world may shrink
    smaller: World | None = None  # to go on with

    @property
    def signature(self) -> str:
        return signature(self.gone, self.lines)

    @property
    def said(self) -> str:
        """The error that it named, in its own words."""
        return stated_cause(self.lines)

    @property
    def shrinks_to(self) -> int | None:
        return None if self.smaller is None else self.smaller.size

    def fields(self) -> dict[str, Any]:
        """Return what a record of the failure says of it; None: nothing."""
        hang = self.gone.hang
        return {
            **self.gone.fields(),
            "signature": self.signature,
            "cause": self.cause or None,
            "detail": None if hang is None else "hang",
            "hang": None if hang is None else str(hang),
            "idle_s": None if hang is None else round(hang.idle_s, 3),
            "stacks": None if hang is None else list(hang.stacks)[:32],
            "log_tail": self.tail or None,
            "final": self.is_final or None,
            "local_rank": self.place,
            "shrinks_to": self.shrinks_to,
            "has_stepped": self.has_stepped,
            "worker_pid": self.pid or None,
        }

    def facts(self, job: str, attempt: int, gen: int, ended_unix_s: float, *, has_new_commit: bool) -> AttemptFacts:
        """Return what the restart policy judges of the generation that it ended."""
        return AttemptFacts(
            attempt=attempt,
            gen=gen,
            job=job,
            ended_unix_s=ended_unix_s,
            reason="failed",
            failure_class=classify(self.gone),
            signature=self.signature,
            is_final=self.is_final,
            local_rank=self.place,
            shrinks_to=self.shrinks_to,
            pid=self.pid,
            has_stepped=self.has_stepped is True,
            has_new_commit=has_new_commit,
        )
