"""How many processes the kernel's memory killer ended in this control group: the evidence behind a SIGKILL."""

from __future__ import annotations

from pathlib import Path

from ett.control_group import MOUNT, OWN, memory_groups

_FILES = {1: "memory.oom_control", 2: "memory.events"}  # by version of the control group


def num_memory_kills(own: Path = OWN, mount: Path = MOUNT) -> int | None:
    """Return the kernel's own count; None where this machine does not tell it (no memory controller, no rights)."""
    counts = (_oom_kill(group.folder / _FILES[group.version]) for group in memory_groups(own, mount))
    return next((count for count in counts if count is not None), None)


def _oom_kill(file: Path) -> int | None:
    try:
        fields = dict(line.split() for line in file.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None
