"""Which process is meant: a pid alone comes round again, so it goes with its start time, its boot and its host."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from ett.clock import boot_id
from ett.guardian import stat_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessIdentity:
    pid: int
    start_ticks: int  # since boot, from /proc/<pid>/stat; 0 where the process was gone already
    boot: str
    host: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        found = stat_fields(pid)
        return cls(pid=pid, start_ticks=found[1] if found else 0, boot=boot_id(), host=os.uname().nodename)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_alive(self) -> bool:
        """True only where this very process runs on this boot; a zombie does not run."""
        if self.boot != boot_id():
            return False
        found = stat_fields(self.pid)
        return found is not None and found[1] == self.start_ticks
