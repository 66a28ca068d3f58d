"""A job's event files as the durable queue to one collector: what was acknowledged is a byte offset a file.

Nothing is copied: the log files are append-only and stay, so the spool takes no disk of its own beyond a small state
file and at most 1 MiB of rejected lines. A crash loses at most the newest acknowledgement, and those lines are sent
again; the store counts them as duplicates.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

from ett.collector.batch import FILE_NAME, MAX_LINES, Block
from ett.errors import Conflict
from ett.job_folder import read_json, write_json

SCHEMA = "ett.sync/v1"
BATCH_BYTES = 1 << 20
LONGEST_LINE_BYTES = 64 << 10  # the log's own limit is 4 KiB: what has no line feed for longer than this is no record
_REJECTED_FILE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Whole lines of one file from byte `begin` to `end`."""

    file: str
    begin: int
    end: int
    lines: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What goes into one request, of one job."""

    job: str
    stretches: tuple[Stretch, ...]

    @property
    def num_lines(self) -> int:
        return sum(len(stretch.lines) for stretch in self.stretches)

    def blocks(self) -> Iterator[Block]:
        for stretch in self.stretches:
            yield Block(job=self.job, file=stretch.file, lines=stretch.lines)


@dataclass(kw_only=True, slots=True)
class Counts:
    """Lines that are done with; accepted + duplicate + rejected + unsendable == sent."""

    sent: int = 0
    accepted: int = 0
    duplicate: int = 0
    rejected: int = 0  # by the store
    unsendable: int = 0  # by the agent: longer than any record may be

    def add(self, other: Counts) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def since(self, before: Counts) -> Counts:
        return Counts(**{name: value - getattr(before, name) for name, value in asdict(self).items()})


@dataclass(kw_only=True, slots=True)
class _State:
    offsets: dict[str, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)


class Spool:
    """The unsent lines of one job for one endpoint; one process at a time holds it.

    Args:
        events: the folder with the event files.
        folder: where the state lies; made if missing.
    Raises: Conflict: another agent ships this job to that endpoint.
    """

    def __init__(self, job: str, events: Path, folder: Path, endpoint: str) -> None:
        self.job, self._events, self._folder, self._endpoint = job, events, folder, endpoint
        folder.mkdir(parents=True, exist_ok=True)
        stem = sha256(endpoint.rstrip("/").encode()).hexdigest()[:12]
        self._state_file = folder / f"{stem}.json"
        self.rejected_file = folder / f"{stem}.rejected.jsonl"
        self._lock_fd = _lock(folder / f"{stem}.lock", job, endpoint)
        self._state = self._read_state()
        self._limits: dict[str, int] = {}

    def close(self) -> None:
        os.close(self._lock_fd)

    @property
    def counts(self) -> Counts:
        return self._state.counts

    @property
    def is_drained(self) -> bool:
        """True where every whole line up to the last look's ends was acknowledged."""
        return self.next_batch(1) is None

    def look(self) -> None:
        """Note how long every file is now: `next_batch` goes so far.

        The supervisor's files are measured first and sent last, so an attempt's end never overtakes what its ranks
        wrote before it.
        """
        sizes: dict[str, int] = {}
        for name in sorted(self._files(), key=lambda name: (not _is_supervisors(name), name)):
            sizes[name] = (self._events / name).stat().st_size
            if sizes[name] < self._state.offsets.get(name, 0):
                self._state.offsets[name] = 0  # not the file that it was: the store knows what it has
        self._limits = dict(sorted(sizes.items(), key=lambda item: (_is_supervisors(item[0]), item[0])))

    def next_batch(self, max_lines: int = MAX_LINES) -> Batch | None:
        """Return the next lines up to the last look's ends; None: all whole lines were acknowledged."""
        stretches: list[Stretch] = []
        left_bytes, left_lines = BATCH_BYTES, max_lines
        for name, limit in self._limits.items():
            stretch = self._stretch(name, limit, left_bytes, left_lines)
            if stretch is None:
                continue
            stretches.append(stretch)
            left_bytes -= stretch.end - stretch.begin
            left_lines -= len(stretch.lines)
            if left_bytes < LONGEST_LINE_BYTES or not left_lines:
                break
        return Batch(job=self.job, stretches=tuple(stretches)) if stretches else None

    def acknowledge(self, batch: Batch, reply: Mapping[str, Any]) -> None:
        """Keep that the batch is done with, for good, and write down what was rejected of it."""
        by_file = {stretch.file: stretch for stretch in batch.stretches}
        rejected = [item for item in reply["rejected"] if isinstance(item, dict)]
        for item in rejected:
            self._write_rejected(by_file.get(str(item.get("file"))), item)
        for stretch in batch.stretches:
            self._state.offsets[stretch.file] = stretch.end
        self._state.counts.add(
            Counts(
                sent=batch.num_lines,
                accepted=reply["accepted"],
                duplicate=reply["duplicate"],
                rejected=len(reply["rejected"]),
            )
        )
        self._keep()

    def give_up(self, batch: Batch, why: str) -> None:
        """Keep that lines can never be sent: they are written down and passed over."""
        for stretch in batch.stretches:
            self._write_rejected(stretch, {"code": "unsendable", "text": why, "line": 0})
            self._state.offsets[stretch.file] = stretch.end
        self._state.counts.add(Counts(sent=batch.num_lines, unsendable=batch.num_lines))
        self._keep()

    def _stretch(self, name: str, limit: int, max_bytes: int, max_lines: int) -> Stretch | None:
        """The next whole lines of a file; None: there is none yet, and a torn end stays where it is."""
        while (begin := self._state.offsets.get(name, 0)) < limit:
            with (self._events / name).open("rb") as file:
                file.seek(begin)
                data = file.read(min(limit - begin, max_bytes))
            if end := data.rfind(b"\n") + 1:
                lines = tuple(line + b"\n" for line in data[: end - 1].split(b"\n", max_lines)[:max_lines])
                return Stretch(file=name, begin=begin, end=begin + sum(map(len, lines)), lines=lines)
            if len(data) < LONGEST_LINE_BYTES:
                return None
            self._pass_over(name, begin, len(data))
        return None

    def _pass_over(self, name: str, begin: int, num_bytes: int) -> None:
        stretch = Stretch(file=name, begin=begin, end=begin + num_bytes, lines=(b"",))
        self.give_up(Batch(job=self.job, stretches=(stretch,)), f"{num_bytes} bytes without a line feed")

    def _files(self) -> list[str]:
        """The names, below events/, of the files that a store takes."""
        found = (str(path.relative_to(self._events)) for path in self._events.rglob("*.jsonl"))
        return [name for name in found if FILE_NAME.fullmatch(name)]

    def _read_state(self) -> _State:
        plain = read_json(self._state_file)
        if plain.get("schema") != SCHEMA:
            return _State()
        names = Counts.__dataclass_fields__
        counts = {name: plain["counts"].get(name, 0) for name in names}
        return _State(offsets=dict(plain["offsets"]), counts=Counts(**counts))

    def _keep(self) -> None:
        plain = {"schema": SCHEMA, "job": self.job, "endpoint": self._endpoint, "offsets": self._state.offsets}
        # Not kept, it is still known here; the next agent would send it again.
        with contextlib.suppress(OSError):
            write_json(self._state_file, plain | {"counts": asdict(self._state.counts)})

    def _write_rejected(self, stretch: Stretch | None, item: Mapping[str, Any]) -> None:
        line_index = item.get("line")
        place: dict[str, Any] = {"file": item.get("file"), "code": item.get("code"), "text": item.get("text")}
        if stretch is not None and type(line_index) is int and 0 <= line_index < len(stretch.lines):
            ends = [0, *accumulate(map(len, stretch.lines))]
            place |= {
                "file": stretch.file,
                "byte": stretch.begin + ends[line_index],
                "line": _shown(stretch.lines[line_index]),
            }
        with contextlib.suppress(OSError), self.rejected_file.open("a") as file:
            if file.tell() < _REJECTED_FILE_BYTES:  # beyond it only the count goes on; the log itself has the lines
                file.write(json.dumps(place) + "\n")


def _is_supervisors(name: str) -> bool:
    return name.startswith("0/")


def _shown(line: bytes) -> str:
    return line[:4096].decode("utf-8", "backslashreplace").rstrip("\n")


def _lock(path: Path, job: str, endpoint: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        os.close(fd)
        raise Conflict(
            f"another agent sends job {job} to {endpoint}", expected="one agent for a job and an endpoint", do="let it"
        ) from err
    return fd
