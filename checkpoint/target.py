"""What `JOB|URI` on a command line means: the checkpoints of a job, or a checkpoint folder itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ett.checkpoint.buffer import buffer_store
from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.store import Store, open_store
from ett.errors import NotFound
from ett.job_folder import JOB_NAME, find_job
from ett.store_uri import local_path


def open_target(target: str, home: Path) -> Store:
    """Return the store of a job under `home`, of the folder or uri `target`, or of the one job whose name begins so.

    What is named in full goes before a prefix. Raises: NotFound: there is none, or several jobs begin so.
    """
    job_dir = job_dir_of(target, home)
    if job_dir is not None:
        return job_store(job_dir)
    if not target or "://" in target or local_path(target).is_dir():
        return open_store(target)
    raise NotFound(
        f"no job and no folder is named {target!r}",
        expected=f"a job under {home / 'jobs'}, or a checkpoint folder",
        do="`ett ls` lists the jobs",
    )


def job_dir_of(target: str, home: Path) -> Path | None:
    """Return the folder of the job that `target` names, in full or by how its name begins; None: it names none.

    Raises: NotFound: several jobs begin so.
    """
    if JOB_NAME.fullmatch(target) is None:
        return None
    if (home / "jobs" / target).is_dir():
        return home / "jobs" / target
    if local_path(target).is_dir() or not _begins_a_job(home, target):
        return None
    return find_job(home, target).path


def _begins_a_job(home: Path, text: str) -> bool:
    return any(folder.is_dir() for folder in (home / "jobs").glob(f"{text}*"))


def job_store(job_dir: Path) -> Store:
    """Return where a job's checkpoints are: its uri's store, with the buffer of this host if there is one."""
    store = open_store(job_uri(job_dir))
    buffer_dir = _read(job_dir / "recipe.json").get("checkpoint", {}).get("buffer_dir", "")
    local = buffer_store(Path(buffer_dir).expanduser() / job_dir.name if buffer_dir else job_dir / "buffer", store.uri)
    return BufferedStore(local, store) if local.root.is_dir() else store


def job_uri(job_dir: Path) -> str:
    """Return the checkpoint uri of a job: its recipe's, seen from the folder that it was launched in, or its own."""
    uri = _read(job_dir / "recipe.json").get("checkpoint", {}).get("uri", "")
    return seen_from_launch(job_dir, uri) if uri else str(job_dir / "checkpoints")


def seen_from_launch(job_dir: Path, uri: str) -> str:
    """Return a uri of a job's recipe as it was meant: a folder that is not absolute, from where it was launched."""
    if "://" in uri:
        return uri
    return str(Path(_read(job_dir / "launch.json").get("cwd", "."), Path(uri).expanduser()))


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return fields if isinstance(fields, dict) else {}
