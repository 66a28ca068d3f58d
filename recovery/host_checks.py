"""Can this host run the job at all? Looked at before a restart, so that a full disk or a lost device burns none.

Each check looks at one thing, raises what is wrong with it, returns what is only noted ("" or None: nothing), and has a
deadline: a disk or store that does not answer is as bad as one that says no.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ett.checkpoint.store import open_store
from ett.control_group import memory_left
from ett.errors import EttError, Unreachable
from ett.host_health import AttemptNeeds, Finding
from ett.os_failure import os_failure
from ett.raised import raised_by
from ett.recovery.config import RecoveryConfig
from ett.recovery.device_checks import check_devices
from ett.recovery.health_limits import HealthLimits
from ett.store_uri import is_local, local_path

Check = Callable[[], str | None]
SLICE_S = 0.05  # between two questions whether to go on waiting
JOB_FOLDER_BYTES = 1 << 20  # for the records of an attempt, whatever the disk holds of checkpoints
ADDRESS = "127.0.0.1"  # where the ranks of a host meet (ett/one_host_rendezvous.py)


def check_host(
    job_dir: Path, needs: AttemptNeeds, config: RecoveryConfig, meanwhile: Callable[[], None]
) -> tuple[Finding, ...]:
    """Return what was found of each thing that the job needs of this host, after `health.deadline` at most."""
    limits = config.health
    checks = checks_of(job_dir, needs, limits) if limits.enabled else {}
    return look(checks, limits.deadline_s, meanwhile)


def checks_of(job_dir: Path, needs: AttemptNeeds, limits: HealthLimits) -> dict[str, Check]:
    """Return the checks by name; the arguments are those of `ett.host_health.HostChecks`."""
    saves = needs.sections.get("checkpoint", {})
    uri, device = saves.get("uri", ""), needs.sections.get("dense", {}).get("device", "cpu")
    folders = {"job_folder": (job_dir, "ETT_HOME")}
    checks: dict[str, Check] = {}
    if uri and is_local(uri):
        folders["checkpoints"] = (local_path(uri), "checkpoint.uri")
    elif uri:
        buffer = saves.get("buffer_dir", "")
        folders["buffer"] = (Path(buffer).expanduser() if buffer else job_dir / "buffer", "checkpoint.buffer_dir")
        if needs.is_thorough:
            checks["store"] = partial(check_store, uri)
    for name, (folder, setting) in folders.items():
        # Only the next start makes room for checkpoints: it removes what unfinished saves left, and prunes the buffer.
        fewest = min(JOB_FOLDER_BYTES, limits.min_disk_bytes) if name == "job_folder" else 0
        room = partial(check_folder, folder, setting, min_bytes=fewest, low_bytes=limits.min_disk_bytes)
        has_commits = needs.has_committed and name == "checkpoints"
        checks[name] = partial(check_commits, folder, room) if has_commits else room
    checks["memory"] = partial(check_memory, limits.min_memory_bytes)
    checks["loopback"] = check_loopback
    if needs.is_thorough and device != "cpu":
        seen = {"is_wanted": device == "cuda", "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}
        checks["device"] = partial(check_devices, needs.places, needs.fewest, **seen)
    return checks


def look(
    checks: Mapping[str, Check], deadline_s: float, meanwhile: Callable[[], None] = lambda: None
) -> tuple[Finding, ...]:
    """Do all checks beside each other; one that has not ended at the deadline is left behind in its thread.

    The next look waits for that one and starts none beside it.
    """
    until_s = time.monotonic() + deadline_s
    for name, check in checks.items():
        if name not in _newest or not _newest[name].is_under_way:
            _newest[name] = _Look(name, check)
    looks = [_newest[name] for name in checks]
    for one in looks:
        one.wait(until_s, meanwhile)
    return tuple(one.finding(deadline_s) for one in looks)


class _Look:
    def __init__(self, name: str, check: Check) -> None:
        self._name, self._check, self._begun_s = name, check, time.monotonic()
        self._ended: list[tuple[float, str, BaseException | None]] = []
        self._thread = threading.Thread(target=self._run, name=f"ett-health-{name}", daemon=True)
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def wait(self, until_s: float, meanwhile: Callable[[], None]) -> None:
        while self.is_under_way and (left_s := until_s - time.monotonic()) > 0:
            meanwhile()
            self._thread.join(min(SLICE_S, left_s))

    def finding(self, deadline_s: float) -> Finding:
        if not self._ended:
            return Finding(
                check=self._name,
                took_s=deadline_s,
                fact=f"no answer within {deadline_s:g} s",
                do="look at its disk, mount or network: what hangs here would hang the job",
            )
        took_s, note, raised = self._ended[0]
        if raised is None:
            return Finding(check=self._name, took_s=took_s, note=note)
        if not isinstance(raised, EttError):
            # A bug of ours, say: it tells nothing of the host, and must not end a job that could go on.
            note = f"could not be looked at ({type(raised).__name__}: {raised})"
            return Finding(check=self._name, took_s=took_s, note=note)
        return Finding(check=self._name, took_s=took_s, fact=raised.fact, do=raised.do)

    def _run(self) -> None:
        notes: list[str | None] = []
        raised = raised_by(lambda: notes.append(self._check()))
        note = next(iter(notes), None) or ""
        self._ended.append((time.monotonic() - self._begun_s, note, raised))


_newest: dict[str, _Look] = {}  # of each check, in this process


def check_folder(folder: Path, setting: str, *, min_bytes: int = 0, low_bytes: int = 0) -> str:
    """Raise unless `folder`, or the nearest one above it that is there, has that much room and takes a file.

    Returns: what is noted: room below `low_bytes`.
    """
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        found = os.statvfs(folder)
        free = found.f_bavail * found.f_frsize
        _write_unnamed(folder)
    except OSError as err:
        raise os_failure(err, folder, elsewhere=setting) from err
    if free < min_bytes:
        raise Unreachable(
            f"{folder} has {free:,} bytes free, fewer than the {min_bytes:,} that an attempt's records need",
            do=f"free space, or choose a larger disk ({setting})",
            code="S002",
        )
    if free < low_bytes:
        return f"{folder} has {free:,} bytes free, fewer than the {low_bytes:,} of recovery.health.min_disk_bytes"
    return ""


def check_commits(folder: Path, room: Callable[[], str]) -> str:
    """Raise where a folder's commits are not there; else as `room`. Without its disk a folder may be an empty one."""
    try:
        (folder / "commits").stat()
    except FileNotFoundError as err:
        raise Unreachable(
            f"{folder} has no commits any more",
            do="mount its disk again, or put the folder back (checkpoint.uri): the job goes on from what is there",
        ) from err
    except OSError as err:
        raise os_failure(err, folder, elsewhere="checkpoint.uri") from err
    return room()


def _write_unnamed(folder: Path) -> None:
    """Write a block into a file without a name, which nothing can leave behind. Raises: OSError."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as err:
        if err.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL) and os.access(folder, os.W_OK):
            return  # no such files here, as on NFS
        raise
    try:
        os.write(fd, bytes(4096))
        os.fsync(fd)
    finally:
        os.close(fd)


def check_memory(min_bytes: int, meminfo: Path = Path("/proc/meminfo")) -> None:
    """Raise unless this host, and the control group of this process where it is limited, have that much left."""
    left = {"this host": _available(meminfo), "this control group": memory_left()}
    for where, free in left.items():
        if free is not None and free < min_bytes:
            raise Unreachable(
                f"{where} has {free:,} bytes of memory left, fewer than the {min_bytes:,} of "
                "recovery.health.min_memory_bytes",
                do="end what else runs here (`ps aux --sort=-rss`), or give the job more memory",
            )


def _available(meminfo: Path) -> int | None:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def check_loopback() -> None:
    """Raise unless two processes of this host can meet."""
    try:
        with socket.create_server((ADDRESS, 0)) as server, socket.create_connection(server.getsockname(), 5):
            pass
    except OSError as err:
        raise Unreachable(
            f"nothing can connect to {ADDRESS} ({err.strerror or err})",
            do="bring the host's loopback up (`ip link set lo up`): its ranks meet there",
        ) from err


def check_store(uri: str) -> None:
    """Raise unless the store of the checkpoints answers; the libraries behind it have errors of their own."""
    raised = raised_by(lambda: open_store(uri).list("commits"))
    if raised is not None and not isinstance(raised, EttError):
        raise Unreachable(
            f"{uri} cannot be listed ({type(raised).__name__}: {raised})",
            do="check the store, the network and the credentials (checkpoint.uri)",
        ) from raised
    if raised is not None:
        raise raised
