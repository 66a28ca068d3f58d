"""What `JOB|URI` on a command line means: the checkpoints of a job, or a checkpoint folder itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ett.checkpoint.store import Store, open_store
from ett.checkpoint.store_uri import local_path
from ett.errors import NotFound


def open_target(target: str, home: Path) -> Store:
    """Return the store of a job under `home`, else of the folder or uri that `target` names.

    Raises: NotFound: neither exists.
    """
    job_dir = home / "jobs" / target
    if target and os.sep not in target and job_dir.is_dir():
        return open_store(job_uri(job_dir))
    store = open_store(target)
    if "://" not in target and not local_path(target).is_dir():
        raise NotFound(
            f"no job and no folder is named {target!r}",
            expected=f"a job under {home / 'jobs'}, or a checkpoint folder",
            do="`ett ls` lists the jobs",
        )
    return store


def job_uri(job_dir: Path) -> str:
    """Return the checkpoint uri of a job: its recipe's, seen from the folder that it was launched in, or its own."""
    uri = _read(job_dir / "recipe.json").get("checkpoint", {}).get("uri", "")
    if not uri:
        return str(job_dir / "checkpoints")
    if "://" in uri:
        return str(uri)
    return str(Path(_read(job_dir / "launch.json").get("cwd", "."), Path(uri).expanduser()))


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return fields if isinstance(fields, dict) else {}
