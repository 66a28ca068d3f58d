"""How many processes the kernel's memory killer ended in this control group: the evidence behind a SIGKILL."""

from __future__ import annotations

from pathlib import Path


def num_memory_kills(proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the kernel's own count; None where this machine does not tell it (no memory controller, no rights)."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            file = mount / "memory" / path.lstrip("/") / "memory.oom_control"
        elif not controllers:
            file = mount / path.lstrip("/") / "memory.events"
        else:
            continue
        count = _oom_kill(file)
        if count is not None:
            return count
    return None


def _oom_kill(file: Path) -> int | None:
    try:
        fields = dict(line.split() for line in file.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None
