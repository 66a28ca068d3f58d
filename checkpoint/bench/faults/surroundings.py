"""What the campaign needs besides memory: a disk, a process that forks what is killed, an S3 server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.bench.faults.killed_process import Killer, killer
from ett.checkpoint.bench.faults.s3_faults import Bucket, bucket
from ett.checkpoint.bench.seaweed import find_weed


@dataclass(frozen=True, slots=True)
class Surroundings:
    """disk: a folder. bucket: None where no S3 server can run."""

    disk: Path
    killer: Killer
    bucket: Bucket | None


@contextmanager
def surroundings(scratch: Path) -> Iterator[Surroundings]:
    """Yield what the families outside of this process's memory need; the disk is that of the current folder."""
    with ExitStack() as stack:
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".ett-bench-faults-", dir=".")))
        process = stack.enter_context(killer())
        server = stack.enter_context(bucket(scratch / "server")) if find_weed() else None
        yield Surroundings(disk.absolute(), process, server)
