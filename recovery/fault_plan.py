"""Faults on purpose (`ett launch --chaos SPEC`): which process fails, how, and exactly where (docs/chaos.md).

kill:rank=1,step=120              SIGKILL itself when step 120 begins
hang:how=gil,rank=0,step=7        hang in native code that holds the GIL
disk_full:step=40,saves=2         no space left for the first two saves from step 40 on
kill:mtbf=10m,seed=3              a rank of the job about every ten minutes, in every attempt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ett.errors import UsageError
from ett.recovery.fault import EACH, Fault, parse_fault
from ett.recovery.own_network import is_own_network


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What shall fail in a launch; `flags` are those of `ett launch`."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, specs: Sequence[str]) -> FaultPlan:
        """Read --chaos values. Raises: UsageError: names the value and the nearest word."""
        return cls(tuple(parse_fault(spec) for spec in specs))

    def add(self, kind: str, **keys: int | float | str) -> FaultPlan:
        """Return this plan and one more fault: `add("stop", rank=1, step=7, for_=2)` for "stop:rank=1,step=7,for=2".

        Raises: as `parse`.
        """
        words = ",".join(f"{key.rstrip('_')}={value}" for key, value in keys.items())
        return FaultPlan((*self.faults, parse_fault(f"{kind}:{words}" if words else kind)))

    @property
    def flags(self) -> list[str]:
        return [word for fault in self.faults for word in ("--chaos", str(fault))]

    def check(self, world_size: int) -> None:
        """Raise UsageError for a fault of a rank that the job does not have, or that would cut off this machine."""
        for fault in self.faults:
            if fault.kind == "lost_host" and not is_own_network():
                raise UsageError(
                    f"--chaos {fault}: this process has no network of its own that could be cut off",
                    expected="a network namespace other than that of the process that starts it",
                    do="start the launch in one: `unshare -n sh -c 'ip link set lo up; ett launch …'` as root",
                )
            if fault.rank >= world_size:
                raise UsageError(
                    f"--chaos {fault}: there is no rank {fault.rank} with --nproc {world_size}",
                    expected="rank=0" if world_size == 1 else f"rank=0 to rank={world_size - 1}",
                )

    def starting_at(self, first_attempt: int) -> FaultPlan:
        """Return the plan with the launch's attempts counted as the job counts them."""
        shift = first_attempt - 1
        return FaultPlan(tuple(_shifted(fault, shift) for fault in self.faults))

    def for_process(self, *, rank: int, attempt: int, gen: int = 0) -> FaultPlan:
        """Return the faults that may be that process's."""
        return FaultPlan(tuple(f for f in self.faults if f.may_be_of(rank=rank, attempt=attempt, gen=gen)))

    def __str__(self) -> str:
        return " ".join(map(str, self.faults))


def _shifted(fault: Fault, shift: int) -> Fault:
    return fault if fault.attempt == EACH else replace(fault, attempt=fault.attempt + shift)
