"""Writing the event log straight to its file: one `os.write` a line (`ett/event_line.py`), one writer a file.

The supervisor writes like this, and so does a rank that has no ring (`ett/ring_writer.py`). A writer never raises;
what it cannot write is counted, and the next heartbeat carries the count: telemetry must never stop training.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.clock import Clock, SystemClock, boot_id
from ett.event_line import LineEncoder
from ett.own_descriptor import OwnDescriptor

SCHEMA_VERSION = 1
ROTATE_BYTES = 64 << 20
MAX_LIVES = 100
# These are flushed to the disk before the emit returns; the others survive the process, not a power cut.
SYNC_KINDS = frozenset(
    {
        "allocated",
        "attempt_ended",
        "attempt_started",
        "ckpt_commit",
        "exclude",
        "fault",
        "job_ended",
        "job_submitted",
        "policy",
        "preempt_notice",
        "restart_decision",
        "restore",
        "train_end",
    }
)
RANK_WAIT_S = 0.05
REOPEN_INTERVAL_NS = 1_000_000_000


def own_place() -> tuple[str, str]:
    """Return the host and the boot that records of this process name."""
    return (os.uname().nodename or "host")[:64], boot_id()


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """Who writes a file: `stem` names the file, `common` is in each of its records."""

    stem: str
    common: dict[str, Any]

    @classmethod
    def here(cls, source: str, common: Mapping[str, Any]) -> Writer:
        """Return this process as the writer `source` ("sup" or "r<rank>")."""
        (host, boot), pid = own_place(), os.getpid()
        own = {"v": SCHEMA_VERSION, "gen": 0, "src": source, "host": host, "boot": boot, "pid": pid}
        stem = f"{source}-{re.sub(r'[^A-Za-z0-9._-]', '_', host)}-{pid}-{boot[:8]}"
        return cls(stem=stem, common=own | dict(common))

    def file_stem(self, number: int) -> str:
        """Return the name of its file of that number, from 0, without the ending."""
        return f"{self.stem}.{number}" if number else self.stem


class EventWriter:
    """Appends records to one file under `events/<attempt>/`; a new file follows at 64 MiB. Thread safe.

    Args:
        folder: the job's `events/<attempt>` folder; made if missing.
        source: "sup" or "r<rank>".
        common: fields of every record (job, rank, att, …); they win over a record's own fields.
        wait_s: longest wait for the disk; None waits until a sync record is on the disk (the supervisor's choice).
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        common: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        wait_s: float | None = RANK_WAIT_S,
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        self._clock = clock or SystemClock()
        self._folder, self._wait_s, self._rotate_bytes = folder, wait_s, rotate_bytes
        self._writer = Writer.here(source, common)
        self._encoder = LineEncoder(self._writer.common)
        self._lock = threading.RLock()
        self._file: OwnDescriptor | None = None
        self._failed_open_ns: int | None = None
        self._file_number = self._seq = self._file_bytes = 0
        self._is_torn = self._is_closed = False
        self.dropped = 0  # records that could not be written

    def emit(self, ev: str, **fields: Any) -> bool:
        """Write one record and return whether it was written whole; never raises."""
        if not self._lock.acquire(timeout=-1 if self._wait_s is None else self._wait_s):
            self.dropped += 1
            return False
        try:
            return self._write(ev, fields)
        except Exception:  # noqa: BLE001 - the event sink: a full disk or an odd value must not end a training job
            self.dropped += 1
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._close_file()

    def _write(self, ev: str, fields: dict[str, Any]) -> bool:
        fd = self._open_file()
        if fd is None:
            self.dropped += 1
            return False
        wall_ns, mono_ns = self._clock.wall_ns(), self._clock.mono_ns()
        line = self._encoder.encode(ev, fields, seq=self._seq, wall_ns=wall_ns, mono_ns=mono_ns)
        # A gap in seq tells the reader of a lost record even if no later heartbeat does, so it advances first.
        self._seq += 1
        if self._is_torn:
            line = b"\n" + line  # ends the torn line, or the next record would be lost with it
        written = os.write(fd, line)
        self._file_bytes += written
        self._is_torn = written != len(line) and not (self._is_torn and written == 0)
        if self._is_torn:
            self.dropped += 1
            return False
        if ev in SYNC_KINDS:
            self._sync(fd)
        if self._file_bytes >= self._rotate_bytes:
            self._close_file()
            self._file_number, self._seq, self._file_bytes = self._file_number + 1, 0, 0
        return True

    def _open_file(self) -> int | None:
        if self._file is not None or self._is_closed:
            return self._file.fd if self._file is not None and self._file.is_ours else None
        now_ns = self._clock.mono_ns()
        if self._failed_open_ns is not None and now_ns - self._failed_open_ns < REOPEN_INTERVAL_NS:
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd, _ = open_fresh(self._folder, self._writer.file_stem(self._file_number), os.O_APPEND)
        except OSError:
            self._failed_open_ns = now_ns
            return None
        self._failed_open_ns, self._file = None, OwnDescriptor(fd)
        return fd

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _sync(self, fd: int) -> None:
        if self._wait_s is None:
            os.fdatasync(fd)
            return
        # A stuck disk can hold fdatasync for minutes; the thread keeps a descriptor of its own and may end late.
        own_fd = os.dup(fd)
        try:
            thread = threading.Thread(target=_sync_and_close, args=(own_fd,), name="ett-sync", daemon=True)
            thread.start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            _sync_and_close(own_fd)
            return
        thread.join(self._wait_s)


def open_fresh(folder: Path, stem: str, flags: int = 0) -> tuple[int, int]:
    """Create a file that did not exist: a process id may come round again, and a file has one writer.

    Returns: the descriptor, and which life of the stem it is, from 0 (`life_name`).
    """
    for life in range(MAX_LIVES):
        try:
            flags_of_new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags
            return os.open(folder / life_name(stem, life), flags_of_new, 0o644), life
        except FileExistsError:
            continue
    raise FileExistsError(folder / stem)


def life_name(stem: str, life: int) -> str:
    return f"{stem}.again{life}.jsonl" if life else f"{stem}.jsonl"


def _sync_and_close(fd: int) -> None:
    try:
        os.fdatasync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)
