"""Faults on purpose (`ett launch --chaos SPEC`): which process fails, how, and exactly where.

    kill:rank=1,step=120              SIGKILL itself when step 120 begins
    exit:rank=0,step=5,code=3         exit at once with that code, cleanups skipped
    hang:rank=0,step=7                sleep for ever

Further keys: `point=` (default "step"; a checkpoint has "ckpt_before_write", "ckpt_after_shard_write",
"ckpt_before_commit", "ckpt_after_commit"), `attempt=` (default 1: the first attempt of the launch, so that the
restarted job is not killed again), `gen=` (default 0: the first generation of that attempt).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from ett.errors import UsageError

Kind = Literal["kill", "exit", "hang"]
_KINDS = ("kill", "exit", "hang")
_GRAMMAR = "kill:|exit:|hang: then rank=N,step=N[,code=N][,point=NAME][,attempt=N], such as kill:rank=1,step=120"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One failure of one process at one place; happens at most once, since the process does not outlive it."""

    kind: Kind
    step: int
    rank: int = 0
    code: int = 1  # of exit
    point: str = "step"
    attempt: int = 1
    gen: int = 0

    def __str__(self) -> str:
        code = f",code={self.code}" if self.kind == "exit" else ""
        gen = f",gen={self.gen}" if self.gen else ""
        return f"{self.kind}:rank={self.rank},step={self.step}{code},point={self.point},attempt={self.attempt}{gen}"

    @property
    def announcement(self) -> str:
        """The line that the process writes to its stderr before it fails."""
        return f"ett chaos: {self}"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    faults: tuple[Fault, ...]

    @classmethod
    def parse(cls, specs: Sequence[str]) -> FaultPlan:
        """Read --chaos values. Raises: UsageError: names the value and the grammar."""
        return cls(tuple(_parse(spec) for spec in specs))

    def check_ranks(self, world_size: int) -> None:
        """Raise UsageError for a fault of a rank that the job does not have."""
        for fault in self.faults:
            if fault.rank >= world_size:
                raise UsageError(
                    f"--chaos {fault}: there is no rank {fault.rank} with --nproc {world_size}",
                    expected="rank=0" if world_size == 1 else f"rank=0 to rank={world_size - 1}",
                )

    def starting_at(self, first_attempt: int) -> FaultPlan:
        """Return the plan with the launch's attempts counted as the job counts them."""
        shift = first_attempt - 1
        return FaultPlan(tuple(replace(fault, attempt=fault.attempt + shift) for fault in self.faults))

    def for_process(self, *, rank: int, attempt: int, gen: int = 0) -> FaultPlan:
        return FaultPlan(tuple(f for f in self.faults if (f.rank, f.attempt, f.gen) == (rank, attempt, gen)))

    def __str__(self) -> str:
        return " ".join(map(str, self.faults))

    def fire(self, point: str, step: int) -> None:
        """Fail this process if the plan says so here; otherwise cost next to nothing."""
        for fault in self.faults:
            if fault.point == point and fault.step == step:
                _happen(fault)


def _parse(spec: str) -> Fault:
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in _KINDS:
        raise UsageError(f"--chaos {spec!r}: unknown kind {kind!r}", expected=_GRAMMAR)
    numbers: dict[str, int] = {}
    point = "step"
    for pair in rest.split(","):
        key, _, value = pair.partition("=")
        if key == "point" and value:
            point = value
        elif key in ("rank", "step", "attempt", "gen") or (key == "code" and kind == "exit"):
            if not value.isdecimal():
                raise UsageError(f"--chaos {spec!r}: {key} is {value!r}", expected="a number of 0 or more")
            numbers[key] = int(value)
        else:
            raise UsageError(f"--chaos {spec!r}: {pair!r} has no meaning here", expected=_GRAMMAR)
    if "step" not in numbers:
        raise UsageError(f"--chaos {spec!r}: no step", expected=_GRAMMAR)
    return Fault(kind=cast(Kind, kind), point=point, **numbers)


def _happen(fault: Fault) -> None:
    sys.stderr.write(f"{fault.announcement}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    if fault.kind == "exit":
        os._exit(fault.code)
    if fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(3600)
