"""The supervisor's end of the rings: a thread of its own moves their lines to the event log's files.

A stuck disk holds up this thread and nothing else. What it cannot write stays in the rings: a supervisor that ends
leaves them after a bounded wait, and the job's next one finds them by the name of the folder.

Byte n of a ring's stream is written to offset n of its file. So writing again what a killed drain had written already
changes nothing, and a line that the disk took half of is completed by the next try.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ett.clock import SystemClock
from ett.event_line import LineEncoder
from ett.event_log import life_name, open_fresh
from ett.guardian import stat_fields
from ett.ring import CLOSED, DROPPED, DROPPED_TOLD, HEAD, LIFE, NEXT_SEQ, SKIPPED, SYNC_WANTED, SYNCED, TAIL, Ring
from ett.ring_folder import BASE, JOB, WAKE, make_ring_folder, remove_ring_folder, ring_folder, ring_paths

POLL_S = 0.05  # a record reaches its file about this much later
FLUSH_WAIT_S = 2.0
STOP_WAIT_S = 5.0
RETRY_S = 0.5  # after the disk refused
BATCH_BYTES = 1 << 20
_FILE = re.compile(r"[0-9]{1,9}/r[0-9]{1,9}-[A-Za-z0-9._-]{1,160}")


@dataclass(kw_only=True, slots=True)
class DrainState:
    """What the drain did and could not do."""

    num_bytes: int = 0
    num_refused: int = 0  # tries that the disk refused
    last_error: str = ""
    unusable: dict[Path, str] = field(
        default_factory=dict
    )  # files in the folder that are no rings of this job, and why


@dataclass(kw_only=True, slots=True)
class _Drained:
    ring: Ring
    fd: int | None = None  # of its file
    retry_at_s: float = 0.0


class RingDrain:
    """Drains the rings of one job, from `start` to `stop`; the holder of the job's lease has exactly one.

    Args:
        job_dir: the job's folder; nothing is written for a job whose folder is gone.
        base: the tmpfs.
    """

    def __init__(self, job_dir: Path, base: Path = BASE) -> None:
        self._job_dir, self._base = job_dir, base
        self._folder: Path | None = None
        self._wake_fd = self._job_fd = -1
        self._rings: dict[Path, _Drained] = {}
        self._turn = threading.Condition()
        self._num_asked = self._num_done = 0  # passes that somebody waits for
        self._is_refused = False  # in the last pass
        self._stop_at_s: float | None = None
        self._thread: threading.Thread | None = None
        self._later: Callable[[], object] | None = None
        self.state = DrainState()

    def start(self) -> None:
        """Begin to drain; without a tmpfs for this user alone there are no rings, and ranks write for themselves."""
        try:
            folder = make_ring_folder(self._job_dir, self._base)
            self._wake_fd = os.open(folder / WAKE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._job_fd = os.open(folder / JOB, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._job_fd, fcntl.LOCK_SH)
        except OSError as err:
            self.state.last_error = str(err)
            return
        self._folder = folder
        self._thread = threading.Thread(target=self._run, args=(folder,), name="ett-ring-drain", daemon=True)
        self._thread.start()

    @property
    def environ(self) -> dict[str, str]:
        """What a rank must find in its environment: where its ring goes, or that it has to do without."""
        return {"ETT_RING": "" if self._folder is None else str(self._folder)}

    def later(self, write: Callable[[], object]) -> bool:
        """Run `write` in the drain's thread, so that a disk holds up nobody else; False while an earlier one waits."""
        if self._thread is None:
            write()
        elif self._later is not None:
            return False
        else:
            self._later = write
        return True

    def flush(self, wait_s: float = FLUSH_WAIT_S) -> bool:
        """Return True once every record that was emitted before this call is in its file; False after `wait_s`."""
        if self._thread is None:
            return True
        with self._turn:
            self._num_asked += 1
            asked = self._num_asked
            self._wake()
            return self._turn.wait_for(lambda: self._num_done >= asked, timeout=wait_s) and not self._is_refused

    def stop(self, wait_s: float = STOP_WAIT_S) -> int:
        """Drain what the ended ranks left, remove their rings, and return how many are left after `wait_s`."""
        if self._thread is None or self._folder is None:
            return 0
        self._stop_at_s = time.monotonic() + wait_s
        self._wake()
        self._thread.join(wait_s + POLL_S)
        if not self._thread.is_alive():
            remove_ring_folder(self._folder)
            os.close(self._wake_fd)
            os.close(self._job_fd)
            self._thread = None
        return len(ring_paths(self._folder))

    def _run(self, folder: Path) -> None:
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        while True:
            with self._turn:
                asked = self._num_asked
            stop_at_s = self._stop_at_s
            if self._later is not None:
                self._later()
                self._later = None
            self._drain_all(folder)
            with self._turn:
                self._num_done = asked
                self._turn.notify_all()
            if stop_at_s is not None and (not self._rings or time.monotonic() >= stop_at_s):
                break
            if poller.poll(POLL_S * 1000):
                with contextlib.suppress(BlockingIOError):  # another end of the pipe has read it
                    os.read(self._wake_fd, 4096)
        for drained in self._rings.values():
            self._let_go(drained)
        self._rings.clear()

    def _drain_all(self, folder: Path) -> None:
        for path in ring_paths(folder):
            if path not in self._rings and path not in self.state.unusable:
                self._take(path)
        is_refused = False
        for path, drained in list(self._rings.items()):
            if time.monotonic() < drained.retry_at_s:
                is_refused = True
                continue
            try:
                if self._drain(drained):
                    del self._rings[path]
            except OSError as err:
                if self._stop_at_s is not None and not self._job_dir.exists():
                    path.unlink(missing_ok=True)  # the job's owner removed its folder: nobody will ask for these
                is_refused = True
                drained.retry_at_s = time.monotonic() + RETRY_S
                self.state.num_refused += 1
                self.state.last_error = str(err)
        self._is_refused = is_refused

    def _take(self, path: Path) -> None:
        try:
            ring = Ring.open(path)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as err:
            self.state.unusable[path] = str(err)
            return
        if _FILE.fullmatch(ring.header.file) and Path(ring.header.job_dir) == self._job_dir:
            self._rings[path] = _Drained(ring=ring)
        else:
            self.state.unusable[path] = f"it belongs to {ring.header.job_dir}"
            ring.close()

    def _drain(self, drained: _Drained) -> bool:
        """Move a ring's lines to its file; return True once it is empty, its writer gone and the ring removed."""
        ring, words = drained.ring, drained.ring.words
        is_gone = _is_writer_gone(ring)  # asked first: whatever is there then is all that there will be
        self._move(drained, words[HEAD] if is_gone else ring.whole_end())
        if is_gone and words[DROPPED] > words[DROPPED_TOLD] and _say_dropped(ring):
            self._move(drained, words[HEAD])
        if drained.fd is not None and words[SYNCED] < words[SYNC_WANTED] <= words[TAIL]:
            os.fdatasync(drained.fd)
            words[SYNCED] = words[TAIL]
        if is_gone and words[TAIL] == words[HEAD]:
            ring.path.unlink(missing_ok=True)
            self._let_go(drained)
            return True
        return False

    def _move(self, drained: _Drained, end: int) -> None:
        ring, words = drained.ring, drained.ring.words
        while (tail := words[TAIL]) < end:
            lines = ring.peek(tail, min(end, tail + BATCH_BYTES))
            lines = lines[: lines.rfind(b"\n") + 1] or lines
            if drained.fd is None:
                drained.fd = self._open_file(ring)
            written = os.pwrite(drained.fd, lines, tail)
            # Whole lines only: the half that the disk took of one is written again, to the same place.
            num_whole = written if written == len(lines) else lines.rfind(b"\n", 0, written) + 1
            words[TAIL] = tail + num_whole
            self.state.num_bytes += num_whole
            if written < len(lines):
                raise OSError(errno.ENOSPC, f"the disk took {written} of {len(lines)} bytes")

    def _open_file(self, ring: Ring) -> int:
        """Open the ring's file for writing, and make it the first time. Raises: OSError."""
        attempt, stem = ring.header.file.split("/")
        folder = self._job_dir / "events" / attempt
        for parent in (folder.parent, folder):  # never the job's own folder: its owner may have removed it
            with contextlib.suppress(FileExistsError):
                parent.mkdir()
        life = ring.words[LIFE]
        if life:
            return os.open(folder / life_name(stem, life - 1), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fd, fresh = open_fresh(folder, stem)
        ring.words[LIFE] = fresh + 1
        return fd

    def _let_go(self, drained: _Drained) -> None:
        if drained.fd is not None:
            os.close(drained.fd)
        drained.ring.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes it just as well
            os.write(self._wake_fd, b"w")


def drain_leftovers(job_dir: Path, base: Path = BASE) -> int:
    """Write down what the rings of an earlier supervisor still hold, and return how many could not be emptied.

    For the holder of the job's lease. A ring whose writer still runs stays.
    """
    if not ring_paths(ring_folder(job_dir, base)):
        return 0
    drain = RingDrain(job_dir, base)
    drain.start()
    return drain.stop()


def _is_writer_gone(ring: Ring) -> bool:
    """Return whether nothing will be written any more.

    Its lock is gone with its process, in whatever pid namespace that was. A program that closes every descriptor gives
    the lock up alive: so the process itself is looked for as well, unless it said that it was done.
    """
    if ring.is_locked():
        return False
    if ring.words[CLOSED]:
        return True
    found = stat_fields(int(ring.header.common["pid"]))
    return found is None or found[1] != ring.header.start_ticks


def _say_dropped(ring: Ring) -> bool:
    """Write the heartbeat that the writer did not live to write: how many records it dropped."""
    words, dropped = ring.words, ring.words[DROPPED]
    clock = SystemClock()
    seq = words[NEXT_SEQ] + dropped - words[SKIPPED]
    line = LineEncoder(ring.header.common).encode(
        "heartbeat", {"dropped": dropped}, seq=seq, wall_ns=clock.wall_ns(), mono_ns=clock.mono_ns()
    )
    words[DROPPED_TOLD] = dropped
    return ring.append(line)
