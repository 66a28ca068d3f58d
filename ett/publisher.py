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
from typing import Any, Protocol

from ett.errors import ConfigError
from ett.job_folder import JobFolder
from ett.raised import raised_by
from ett.side_process import start_beside
from ett.store_uri import shown_uri


class PublishedBySupervisor(Protocol):
    folder: JobFolder

    def tell_publisher(self, to: str, pid: int | None) -> None: ...

    def say(self, text: str) -> None: ...


def publish_section(recipe: Path) -> dict[str, Any]:
    """Return [publish] of a job's resolved recipe; an empty one where there is none.

    Raises: ConfigError: the recipe is damaged. OSError: its disk does not answer.
    """
    try:
        plain = json.loads(recipe.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        plain = None
    section = plain.get("publish", {}) if isinstance(plain, dict) else None
    if isinstance(section, dict):
        return section
    name = recipe.parent.name
    raise ConfigError(
        f"{recipe} is damaged",
        expected="the resolved recipe of this job",
        do=f"give the recipe again: `ett launch --job {name} RECIPE.toml`; or publish by `ett publish {name} --to URI`",
    )


def start_publisher(folder: JobFolder, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `ett publish job`, its output appended to publish/publish.log of the job. Raises: OSError."""
    # Without what names a process of the job: the guardian would end it with the launch.
    own = {name: value for name, value in environ.items() if not name.startswith("ETT_") or name == "ETT_CONFIG"}
    return start_beside(
        [sys.executable, "-m", "ett", "publish", "job", folder.name],
        log_of(folder),
        own | {"ETT_HOME": str(folder.path.parents[1])},
        Path("/"),
    )


def log_of(folder: JobFolder) -> Path:
    return folder.path / "publish" / "publish.log"


def begin_publishing(job: PublishedBySupervisor) -> None:
    """Start the publisher where the job's recipe asks for it; whatever comes of it, the job has succeeded."""
    failure = raised_by(lambda: _begin(job))
    if failure is not None:
        name = job.folder.name
        job.say(f"job {name} is not published: {failure}   ·   `ett publish job {name}` does it")


def _begin(job: PublishedBySupervisor) -> None:
    to = shown_uri(str(publish_section(job.folder.recipe_file).get("to", "")))
    if not to:
        return
    try:
        pid = start_publisher(job.folder, os.environ).pid
    except OSError:
        job.tell_publisher(to, None)
        raise
    job.tell_publisher(to, pid)
    name = job.folder.name
    job.say(f"job {name} is published to {to} by process {pid}   ·   `ett publish status {name}`, {log_of(job.folder)}")
