"""One job's folder, `$ETT_HOME/jobs/<job>/`: what lies where, who holds it, and which attempt comes next.

launch.json     what was launched: argv, working folder, versions, an allow-list of the environment
recipe.json     the resolved recipe, where there is one
events/         the event log (spec: docs/events.md)
logs/<n>/       output of every rank in attempt n: rank<k>.log (stdout), rank<k>.err (stderr)
attempts/<n>/   made once, before attempt n starts; workers.json names its processes, generation.json who follows
checkpoints/    where checkpoints go unless checkpoint.uri says otherwise
lease           locked by the running supervisor, and names it
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.errors import AccessDenied, Conflict, NotFound, UsageError
from ett.process_identity import ProcessIdentity

JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SHOWN_NAMES = 8  # of jobs, in an error
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


def ett_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of all jobs' folders' parent: $ETT_HOME, else ./.ett; absolute."""
    return Path(environ.get("ETT_HOME") or ".ett").absolute()


def checked_name(name: str) -> str:
    """Return name, which comes from outside and becomes a folder's name. Raises: UsageError."""
    if not JOB_NAME.fullmatch(name):
        raise UsageError(
            f"job name {name[:80]!r}",
            expected="1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit",
        )
    return name


def slug(text: str) -> str:
    """Return text as the first part of a job id: at most 40 lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:40].strip("-") or "job"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths of one job; nothing is made until `create`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def launch_file(self) -> Path:
        return self.path / "launch.json"

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.json"

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def logs(self, attempt: int) -> Path:
        return self.path / "logs" / str(attempt)

    def attempt(self, number: int) -> Path:
        return self.path / "attempts" / str(number)

    def workers_file(self, attempt: int) -> Path:
        return self.attempt(attempt) / "workers.json"

    def create(self) -> None:
        """Make the folder. Raises: Conflict: another launch made it at the same moment. AccessDenied."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise AccessDenied(
                f"the folder of jobs {self.path.parent} cannot be made: {err.strerror}",
                do="give this user a place to write to: $ETT_HOME",
            ) from err
        try:
            self.path.mkdir()
        except FileExistsError as err:
            raise Conflict(f"job {self.name} exists already", do="choose another --job") from err

    def gone(self) -> NotFound:
        return NotFound(
            f"the folder of job {self.name} is gone, or a part of it: {self.path}",
            did="ended its workers",
            do="what it had saved there is gone with it; launch the job again",
        )

    @contextmanager
    def expected(self) -> Iterator[None]:
        """While a job runs: a part of its folder that is not there any more is nobody's bug but whoever deleted it.

        Raises: NotFound: in place of what the operating system says of a path in this folder.
        """
        try:
            yield
        except FileNotFoundError as err:
            if err.filename is None or self.path not in Path(os.fsdecode(err.filename)).parents:
                raise
            raise self.gone() from err

    def attempts(self) -> list[int]:
        """Return the numbers that were taken, in order."""
        try:
            names = os.listdir(self.path / "attempts")
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def take_attempt(self, at_least: int = 1) -> int:
        """Take the next attempt number for good; two supervisors never get the same."""
        (self.path / "attempts").mkdir(exist_ok=True)
        number = max([at_least - 1, *self.attempts()]) + 1
        while True:
            try:
                (self.path / "attempts" / str(number)).mkdir()
                return number
            except FileExistsError:
                number += 1

    def write_workers(self, attempt: int, workers: Mapping[int, ProcessIdentity]) -> None:
        """Keep who the attempt's processes are, by rank: proof for a later supervisor that they are gone."""
        plain = {str(rank): identity.plain() for rank, identity in workers.items()}
        write_json(self.workers_file(attempt), plain)

    def read_workers(self, attempt: int) -> dict[int, ProcessIdentity]:
        """Return the attempt's processes by rank; empty where it died before any was known."""
        plain = read_json(self.workers_file(attempt))
        return {int(rank): ProcessIdentity(**identity) for rank, identity in plain.items()}


class Lease:
    """The right to write a job's records: a lock on JOB/lease, given up at the latest when the process ends."""

    def __init__(self, folder: JobFolder) -> None:
        """Raises: Conflict: another supervisor holds it (names its process)."""
        self._fd = os.open(folder.path / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            holder = os.pread(self._fd, 4096, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise _running(folder.name, holder) from err
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, (json.dumps(ProcessIdentity.of(os.getpid()).plain()) + "\n").encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


def find_job(home: Path, text: str) -> JobFolder:
    """Return the existing job of that name, or the only one whose name begins so. Raises: NotFound, UsageError."""
    checked_name(text)
    jobs = home / "jobs"
    if (jobs / text).is_dir():
        return JobFolder(jobs / text)
    names = sorted(entry.name for entry in os.scandir(jobs) if entry.is_dir()) if jobs.is_dir() else []
    matching = [name for name in names if name.startswith(text)]
    if len(matching) == 1:
        return JobFolder(jobs / matching[0])
    if matching:
        raise NotFound(f"job {text!r} is ambiguous", expected=f"one of {some_of(matching)}", code="N002")
    known = some_of(names) if names else "none"
    raise NotFound(f"there is no job {text!r} under {jobs}", expected=f"known jobs: {known}", do="`ett ls` lists them")


def some_of(names: Sequence[str]) -> str:
    """Return the last few of many names, and how many more there are."""
    more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[-_SHOWN_NAMES:]) + more


def fresh_job(home: Path, stem: str) -> JobFolder:
    """Return the folder, not yet made, of a job id that nobody has: `<slug>-<4 base32>`."""
    while True:
        tail = "".join(secrets.choice(_BASE32) for _ in range(4))
        folder = JobFolder(home / "jobs" / f"{slug(stem)}-{tail}")
        if not folder.exists:
            return folder


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Replace a small file in one step: a reader sees the old text or the new, never half of it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; an empty one where there is no file or no whole object in it."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _running(name: str, holder: str) -> Conflict:
    try:
        identity = json.loads(holder)
        who = f"process {identity['pid']} on {identity['host']}"
    except (ValueError, TypeError, KeyError):
        who = "another process"
    return Conflict(
        f"job {name} is running: {who} supervises it",
        expected="one supervisor a job",
        do=f"wait for it, or end it with SIGTERM; `ett report {name}` shows where it stands",
    )
