"""The control groups of this process that account for memory, of either version of the kernel's interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OWN = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    folder: Path
    version: int  # 1 or 2

    @property
    def left_bytes(self) -> int | None:
        """What its processes can still have, with what the kernel can drop; None where it is not limited or not told.

        That is the pages of files, in use or not, and the kernel's own caches of them.
        """
        limit, used = ("memory.max", "memory.current") if self.version == 2 else _V1_FILES
        dropped = ("inactive_file", "active_file", "slab_reclaimable")
        try:
            most, now = int((self.folder / limit).read_text()), int((self.folder / used).read_text())
            stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
            prefix = "" if self.version == 2 else "total_"
            return most - now + sum(int(stat.get(prefix + name, "0")) for name in dropped)
        except (OSError, ValueError):
            return None  # "max" is no number: not limited


_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def memory_groups(own: Path = OWN, mount: Path = MOUNT) -> list[MemoryGroup]:
    """Return the groups that this process is in, as its kernel names them; [] where it does not."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            groups.append(MemoryGroup(mount / "memory" / path.lstrip("/"), 1))
        elif not controllers:
            groups.append(MemoryGroup(mount / path.lstrip("/"), 2))
    return groups


def memory_left(own: Path = OWN, mount: Path = MOUNT) -> int | None:
    """Return the least that a group of this process, or one above it, has left, in bytes; None: none is limited.

    In a container the names are those of the host while the mount may show the container's group as its root: a group
    that is not there is passed over.
    """
    found = []
    for group in memory_groups(own, mount):
        root = mount / "memory" if group.version == 1 else mount
        folders = [folder for folder in (group.folder, *group.folder.parents) if folder.is_relative_to(root)]
        found += [MemoryGroup(folder, group.version).left_bytes for folder in folders]
    return min((left for left in found if left is not None), default=None)
