"""What ranks on this host recorded and no file has yet: read from their rings, which it leaves as they are.

So that a report of a running job, or of one whose processes were all killed, has every record to that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ett.event_log import life_name
from ett.ring import read_waiting
from ett.ring_folder import ring_folder, ring_paths

WAITING = ".waiting.jsonl"  # how the name of a file ends that is not made yet


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The last bytes of a file, some of which the file itself may lack: they belong at `offset`."""

    offset: int
    lines: bytes

    def complete(self, content: bytes) -> bytes:
        """Return the file's content with what it lacks; read the file after the tail."""
        missing_from = len(content) - self.offset
        return content if missing_from < 0 else content + self.lines[missing_from:]


def waiting_tails(log: Path) -> Mapping[str, Tail]:
    """Return the tails of a job's files by name, "<attempt>/<file>"; none where it has no rings that we may read.

    Args:
        log: the job's folder, or its events/ folder.
    """
    tails: dict[str, Tail] = {}
    for path in ring_paths(ring_folder(log.parent if log.name == "events" else log)):
        found = read_waiting(path)
        if found is not None:
            header, life, offset, lines = found
            attempt, _, stem = header.file.partition("/")
            # A file that is not made yet has no name of its own: the reader drops the doubles if it is made just now.
            name = life_name(stem, life - 1) if life else f"{stem}{WAITING}"
            tails[f"{attempt}/{name}"] = Tail(offset=offset, lines=lines)
    return tails
