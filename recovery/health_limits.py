"""What a host must have before a job is started on it again: the recipe's [recovery.health]."""

from __future__ import annotations

from dataclasses import dataclass

from ett.errors import ConfigError
from ett.recovery.hang_limits import OFF, seconds

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthLimits:
    enabled: bool = True  # look at the host before each restart of the whole attempt
    wait: str = "5m"  # for a host to get well, before the job ends; "0": it ends at once
    deadline: str = "10s"  # of each check: what has not answered then is not well
    # Free, of the disks of the job's folder, its checkpoints and their buffer; with less that is said, no more.
    min_disk_bytes: int = 64 * MIB
    min_memory_bytes: int = 256 * MIB  # that processes can still have: one that has imported torch has most of that

    def __post_init__(self) -> None:
        seconds(self.wait, "recovery.health.wait")
        if self.deadline_s in (0, OFF):
            raise ConfigError(f"recovery.health.deadline is {self.deadline!r}", expected="a time such as '10s'")
        for name in ("min_disk_bytes", "min_memory_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"recovery.health.{name} is {getattr(self, name)}", expected="0 or more")

    @property
    def wait_s(self) -> float:
        found = seconds(self.wait, "recovery.health.wait")
        return 0.0 if found == OFF else found

    @property
    def deadline_s(self) -> float:
        return seconds(self.deadline, "recovery.health.deadline")
