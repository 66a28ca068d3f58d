"""Writing the event log: one checksummed line a record, one `os.write` a line, one writer a file.

A line is canonical JSON, TAB, crc32 of the JSON's bytes as 8 lower-case hex digits, LF; at most 4,096 bytes. A writer
never raises and holds its caller up for at most about 50 ms: what it cannot write is counted, and the next heartbeat
carries the count. Telemetry that fails must never stop training.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ett.clock import Clock, SystemClock, boot_id

SCHEMA_VERSION = 1
MAX_LINE_BYTES = 4096
ROTATE_BYTES = 64 << 20
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

_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=True)


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return the record's line; text that would make it longer than 4,096 bytes is cut and marked `[cut: N chars]`.

    Values that JSON has no form for become text, and NaN or infinity null: a record is never refused.
    """
    body = _json(record)
    if len(body) > MAX_LINE_BYTES - 10:
        body = _json(_shortened(record))
    return b"%b\t%08x\n" % (body, zlib.crc32(body))


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
        host, boot, pid = os.uname().nodename or "host", boot_id(), os.getpid()
        self._stem = f"{source}-{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:64]}-{pid}-{boot[:8]}"
        self._common = {"v": SCHEMA_VERSION, "gen": 0, "src": source, "host": host[:64], "boot": boot, "pid": pid}
        self._common |= common
        self._lock = threading.RLock()
        self._fd: int | None = None
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

    def renew_lock(self) -> None:
        """Replace the lock after a fork: another thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _write(self, ev: str, fields: dict[str, Any]) -> bool:
        fd = self._open_file()
        if fd is None:
            self.dropped += 1
            return False
        fields |= self._common
        fields |= {"ev": ev, "seq": self._seq, "wall_ns": self._clock.wall_ns(), "mono_ns": self._clock.mono_ns()}
        line = encode_line(fields)
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
        if self._fd is not None or self._is_closed:
            return self._fd
        now_ns = self._clock.mono_ns()
        if self._failed_open_ns is not None and now_ns - self._failed_open_ns < REOPEN_INTERVAL_NS:
            return None
        suffix = f".{self._file_number}" if self._file_number else ""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = _open_fresh(self._folder, self._stem + suffix, flags)
            self._failed_open_ns = None
        except OSError:
            self._failed_open_ns = now_ns
        return self._fd

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

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


def _open_fresh(folder: Path, stem: str, flags: int) -> int:
    """Create a file that did not exist: a process id may come round again, and a file has one writer."""
    for life in range(100):
        name = f"{stem}.jsonl" if life == 0 else f"{stem}.again{life}.jsonl"
        try:
            return os.open(folder / name, flags, 0o644)
        except FileExistsError:
            continue
    raise FileExistsError(folder / stem)


def _sync_and_close(fd: int) -> None:
    try:
        os.fdatasync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def _json(record: Mapping[str, Any]) -> bytes:
    try:
        return _encoder.encode(record).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        return _encoder.encode(_plain(record)).encode("ascii")


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 8:
        return str(type(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with its longest values cut until it fits; fields that still do not fit are left out."""
    texts = {
        key: value if isinstance(value, str) else _json({"": value})[4:-1].decode() for key, value in record.items()
    }
    short = dict(record)
    for keep in (2048, 1024, 512, 256, 128):
        for key in [key for key, text in texts.items() if len(text) > keep]:
            short[key] = f"{texts[key][:keep]}[cut: {len(texts[key])} chars]"
        if len(_json(short)) <= MAX_LINE_BYTES - 10:
            return short
    fitting = {key: short[key] for key in _ALWAYS_KEPT if key in short}
    num_left_out = 0
    for key in sorted(set(short) - set(fitting), key=str):
        if len(_json(fitting | {key: short[key]})) <= MAX_LINE_BYTES - 50:
            fitting[key] = short[key]
        else:
            num_left_out += 1
    return fitting | {"cut": f"[cut: {num_left_out} fields]"}


_ALWAYS_KEPT = ("v", "gen", "src", "host", "boot", "pid", "job", "att", "rank", "ev", "seq", "wall_ns", "mono_ns")
