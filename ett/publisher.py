"""What a job's success begins: a process that publishes its last commit, which nobody waits for.

It is of a session of its own, holds nothing of the launch, and ends by itself when it has published or given up. If it
is killed, say with the allocation of its host, the same command goes on where it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from ett.job_folder import JobFolder


class PublishedBySupervisor(Protocol):
    folder: JobFolder

    def tell_publisher(self, to: str, pid: int | None) -> None: ...

    def say(self, text: str) -> None: ...


def published_to(folder: JobFolder) -> str:
    """Return publish.to of the job's recipe; "" where there is none."""
    try:
        plain = json.loads(folder.recipe_file.read_bytes())
    except FileNotFoundError:
        return ""
    return str(plain.get("publish", {}).get("to", ""))


def start_publisher(folder: JobFolder, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `ett publish job`, its output appended to publish/publish.log of the job. Raises: OSError."""
    # Without what names a process of the job: the guardian would end it with the launch.
    own = {name: value for name, value in environ.items() if not name.startswith("ETT_") or name == "ETT_CONFIG"}
    log = log_of(folder)
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "ett", "publish", "job", folder.name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=own | {"ETT_HOME": str(folder.path.parents[1])},
            cwd="/",
            start_new_session=True,
        )


def log_of(folder: JobFolder) -> Path:
    return folder.path / "publish" / "publish.log"


def begin_publishing(job: PublishedBySupervisor) -> None:
    """Start the publisher where the job's recipe asks for it; whatever comes of it, the job has succeeded."""
    to = published_to(job.folder)
    if not to:
        return
    name = job.folder.name
    try:
        pid = start_publisher(job.folder, os.environ).pid
    except OSError as err:
        job.tell_publisher(to, None)
        job.say(f"job {name} is not published: {err}   ·   `ett publish job {name}` does it")
        return
    job.tell_publisher(to, pid)
    job.say(f"job {name} is published to {to} by process {pid}   ·   `ett publish status {name}`, {log_of(job.folder)}")
