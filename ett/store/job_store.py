"""`Store`: takes lines of event files, each record once, and gives a job's log back as its files would."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

from ett.accounting import JobAccount, account
from ett.errors import CorruptState, NotFound, UsageError
from ett.event_reader import EventLog, read_files
from ett.job_folder import checked_name
from ett.store.block import BLOCK_BYTES, Block, blocks_of, clamped, pack, unpack
from ett.store.database import WRITER_WAIT_S, Database, open_database
from ett.store.job_follower import JobFollowers
from ett.store.job_row import JobRow, summarised
from ett.store.job_table import JobFilter, JobPage, JobTable
from ett.store.log_lines import LogLines, RejectCode, Rejected, describe, read_lines, stand_in

_FILE_NAME = re.compile(r"([^/\0]{1,255})/([^/\0]{1,255})")
_KEPT_LINE_BYTES = 256  # of a rejected line, as evidence; of one of another version 4096, which is all of it


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestResult:
    """What became of the lines given: accepted + duplicate + len(rejected) of them."""

    accepted: int
    duplicate: int
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a file of a job's folder was read, and what its bytes before that looked like."""

    next_byte: int
    head_crc: int
    tail_crc: int
    is_torn: bool  # bytes of an unfinished line follow


def open_store(url: str | Path, *, wait_s: float = WRITER_WAIT_S) -> Store:
    """Open a store, made or migrated where needed: a path such as ".ett/ett.db", or "postgresql://…".

    Args:
        wait_s: longest that an ingest waits for other writers before it raises Conflict.
    Raises: Unreachable, AccessDenied, CorruptState (no store, damaged or newer), ConfigError (no psycopg), UsageError.
    """
    return Store(open_database(url), wait_s)


class Store:
    """A job store. Safe from any thread; writers take turns, readers never wait for one."""

    def __init__(self, database: Database, wait_s: float = WRITER_WAIT_S) -> None:
        self._database, self._wait_s = database, wait_s
        self._jobs = JobTable(database)
        self._followers = JobFollowers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The store as messages name it: its path, or its URL without the password."""
        return self._database.name

    def close(self) -> None:
        self._database.close()

    def ingest(self, job: str, file: str, lines: Iterable[bytes]) -> IngestResult:
        """Take whole lines of one event file, all in one transaction; those already there are counted, not stored.

        Args:
            job: the job's name.
            file: the file's path under events/, such as "1/r0-host-4711-boot.jsonl".
            lines: log lines as docs/events.md has them, with or without their LF.
        Raises: UsageError: a name that no job or file has. Conflict, Unreachable, AccessDenied: nothing was stored.
        """
        cleaned = [line[:-1] if line.endswith(b"\n") else line for line in lines]
        # An LF inside would make two lines of one; the checksum of neither half would say so.
        whole = [line if b"\n" not in line else line.replace(b"\n", b"\0") for line in cleaned]
        return self.ingest_lines(job, file, read_lines(b"".join(line + b"\n" for line in whole)))

    def add_job(self, job: str) -> None:
        """Make a job known that has no records yet: it is queued."""
        if self._jobs.is_known(job):
            return
        with self._database.writing():
            self._jobs.locked_id(checked_name(job))

    def ingest_lines(
        self, job: str, file: str, lines: LogLines, position: Position | None = None, *, is_torn: bool = False
    ) -> IngestResult:
        """Take lines that were read; with `position` they end at that byte of a folder's file.

        is_torn: of lines without a position: the file they come from ends in a torn line.
        """
        file_name = _checked_file(file)
        with self._database.writing(self._wait_s):
            job_id = self._jobs.locked_id(checked_name(job))
            file_id = self._file_id(job_id, file_name)
            accepted, duplicate, conflicts = self._new_lines(file_id, lines)
            codes = lines.codes | dict.fromkeys(conflicts, "conflict")
            num_new_rejects = self._keep_rejects(file_id, lines, codes, position)
            self._append(file_id, [lines.line(i) for i in accepted], [lines.seqs[i] or 0 for i in accepted])
            if self._move_on(file_id, position, is_torn) or accepted or num_new_rejects:
                self._database.run("UPDATE job SET generation = generation + 1 WHERE id = ?", (job_id,))
        rejected = tuple(
            Rejected(line_index=index, code=code, text=describe(code, lines.line(index)))
            for index, code in sorted(codes.items())
        )
        return IngestResult(accepted=len(accepted), duplicate=duplicate, rejected=rejected)

    def jobs(
        self,
        team: str | None = None,
        model: str | None = None,
        state: str | None = None,
        since_unix_s: float | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        """Return the jobs, newest first, with figures as of now."""
        asked = JobFilter(team=team, model=model, state=state, since_unix_s=since_unix_s)
        return list(self.page(asked, limit=limit).rows)

    def page(
        self, asked: JobFilter, *, sort: str = "start", limit: int | None = None, cursor: str | None = None
    ) -> JobPage:
        """Return one page of jobs, largest of `sort` first, and the cursor of the next. Raises: UsageError (cursor)."""
        warnings = self.sum_up_stale()
        page = self._jobs.page(asked, sort=sort, limit=limit, cursor=cursor)
        # A running job's figures are of the moment that it was summed up; on this page they are of now.
        rows = [self.sum_up(r.job) if r.window_state == "RUNNING" else r for r in page.rows if r.job not in warnings]
        rows = [row for row in rows if asked.admits(row)]
        return replace(page, rows=tuple(rows), warnings=tuple(f"{job}: {text}" for job, text in warnings.items()))

    def job_names(self) -> list[str]:
        """Return every job's name, in order."""
        return [name for (name,) in self._database.rows("SELECT name FROM job ORDER BY name")]

    def event_log(self, job: str) -> EventLog:
        """Return the job's log: `account` of it is the account of the files it was ingested from.

        Raises: NotFound: no such job. CorruptState: a damaged block, or a record of a schema version we do not know.
        """
        return read_files(
            [(name, partial(self._pieces, file_id, is_torn)) for file_id, name, is_torn in self._files(job)]
        )

    def images(self, job: str) -> Iterator[tuple[str, bytes]]:
        """Yield (name, bytes) of each file, by name; a reader judges the bytes as the file, what is no record included.

        Raises: NotFound, CorruptState.
        """
        for file_id, name, is_torn in self._files(job):
            yield name, b"".join(self._pieces(file_id, is_torn))

    def files(self, job: str) -> Iterator[tuple[str, bytes]]:
        """Yield (name, whole lines that were accepted) of each file of the job, by name."""
        for file_id, name, _ in self._files(job):
            yield name, b"".join(self._blocks(file_id))

    def find_job(self, text: str) -> str:
        """Return the job of that name, or the only one whose name begins so. Raises: NotFound (also ambiguous)."""
        checked_name(text)
        escaped = text.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
        like = self._database.rows(
            "SELECT name FROM job WHERE name LIKE ? ESCAPE '\\' ORDER BY name LIMIT 9", (f"{escaped}%",)
        )
        names = [name for (name,) in like if name.startswith(text)]  # LIKE of SQLite ignores case
        if self._database.rows("SELECT 1 FROM job WHERE name = ?", (text,)):
            return text
        if len(names) == 1:
            return str(names[0])
        if names:
            known = ", ".join(names[:8]) + (", and more" if len(names) > 8 else "")
            raise NotFound(f"job {text!r} is ambiguous", expected=f"one of {known}", code="N002")
        raise NotFound(f"there is no job {text!r} in the store {self.name}", do="`ett ls --store URL` lists them")

    def sum_up(self, job: str, as_of_ns: int | None = None) -> JobRow:
        """Compute the job's account as of now and keep it in the job's row, unless newer records came meanwhile."""
        now_ns = time.time_ns() if as_of_ns is None else as_of_ns
        generation = self._jobs.generation(job)
        with (
            self.live_account(job, now_ns)
            if as_of_ns is None
            else nullcontext(account(self.event_log(job), as_of_ns=now_ns)) as found
        ):
            row = summarised(job, found, now_ns)
            self._jobs.keep(row, found, generation)
        return row

    @contextmanager
    def live_account(self, job: str, as_of_ns: int) -> Iterator[JobAccount | None]:
        """Yield the account of all records that there are; of a running job only those are read that came since.

        The account is valid inside the `with`, which no other thread is in for this job. Raises: as `event_log`.
        """
        job_id = self._jobs.known_id(job)
        if self._has_rejects(job_id):  # they count as what they are, wherever they came in
            yield account(self.event_log(job), as_of_ns=as_of_ns, cut_at_as_of=False)
            return
        with self._followers.follower(job_id) as follower:
            for file_id, name, _ in self._files(job):
                taken = follower.taken.get(file_id)
                follower.take(file_id, name, self._numbered_blocks(file_id, taken.number if taken else 0))
            found = follower.account(as_of_ns)
            if found is None or found.window.state != "RUNNING" or not follower.live.is_incremental:
                self._followers.forget(job_id)
            yield found

    def sum_up_if_stale(self, job: str) -> None:
        """Sum the job up where it got records since; a log that cannot be read stays without a summary."""
        if self._jobs.has_new_records(job):
            with suppress(CorruptState):  # whoever asks for the job is told
                self.sum_up(job)

    def sum_up_stale(self) -> dict[str, str]:
        """Sum up every job that got records since, and every running one that nobody looked at for 90 s.

        Returns: job -> why its log cannot be read, for each such one.
        """
        warnings: dict[str, str] = {}
        for job in self._jobs.stale():
            try:
                self.sum_up(job)
            except CorruptState as err:
                warnings[job] = str(err)
        return warnings

    def get_meta(self, key: str) -> str | None:
        """Return the text kept under key; None where there is none."""
        found = self._database.rows("SELECT value FROM meta WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def generations(self) -> dict[str, int]:
        """Return every job's generation: it rises with new records, so what was computed from older ones is known."""
        return dict(self._database.rows("SELECT name, generation FROM job"))

    def set_meta(self, key: str, text: str) -> None:
        with self._database.writing(self._wait_s):
            self._database.run(
                "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, text),
            )

    def position(self, job: str, file: str) -> Position | None:
        """Return how far the folder's file was read; None: not at all."""
        found = self._database.rows(
            "SELECT p.next_byte, p.head_crc, p.tail_crc, f.is_torn FROM file_position p "
            "JOIN event_file f ON f.id = p.file_id JOIN job j ON j.id = f.job_id WHERE j.name = ? AND f.name = ?",
            (job, file),
        )
        if not found:
            return None
        next_byte, head_crc, tail_crc, is_torn = found[0]
        return Position(next_byte=next_byte, head_crc=head_crc, tail_crc=tail_crc, is_torn=bool(is_torn))

    def set_texts(self, job: str, *, launch: str, recipe: str) -> None:
        """Keep what may be shared of the job's launch.json, and its recipe.json, as JSON text."""
        with self._database.writing():
            self._database.run(
                "UPDATE job SET launch = ?, recipe = ? WHERE id = ?", (launch, recipe, self._jobs.locked_id(job))
            )

    def texts(self, job: str) -> tuple[str, str]:
        """Return the job's launch.json and recipe.json. Raises: NotFound."""
        found = self._database.rows("SELECT launch, recipe FROM job WHERE id = ?", (self._jobs.known_id(job),))
        return str(found[0][0]), str(found[0][1])

    def _files(self, job: str) -> list[tuple[int, str, bool]]:
        sql = "SELECT id, name, is_torn FROM event_file WHERE job_id = ? ORDER BY name"
        found = self._database.rows(sql, (self._jobs.known_id(job),))
        return [(file_id, name, bool(is_torn)) for file_id, name, is_torn in found]

    def _file_id(self, job_id: int, name: str) -> int:
        self._database.run(
            "INSERT INTO event_file (job_id, attempt, name) VALUES (?, ?, ?) ON CONFLICT (job_id, name) DO NOTHING",
            (job_id, _attempt_of(name), name),
        )
        return int(self._database.rows("SELECT id FROM event_file WHERE job_id = ? AND name = ?", (job_id, name))[0][0])

    def _new_lines(self, file_id: int, lines: LogLines) -> tuple[list[int], int, list[int]]:
        """Return the places of lines to store, how many are stored already, and the places of those that conflict."""
        first: dict[int, int] = {}
        again: list[int] = []
        for index, seq in enumerate(lines.seqs):
            if seq is not None and first.setdefault(seq, index) != index:
                again.append(index)
        stored = self._stored_lines(file_id, first)
        accepted = [index for seq, index in first.items() if seq not in stored]
        same, conflicts = 0, []
        for index in [*(i for seq, i in first.items() if seq in stored), *again]:
            seq = lines.seqs[index]
            assert seq is not None
            kept = stored[seq] if seq in stored else lines.line(first[seq])
            if kept == lines.line(index):
                same += 1
            else:
                conflicts.append(index)
        return accepted, same, conflicts

    def _stored_lines(self, file_id: int, wanted: dict[int, int]) -> dict[int, bytes]:
        """Return the stored line of each wanted sequence number that has one."""
        if not wanted:
            return {}
        low, high = clamped(min(wanted)), clamped(max(wanted))
        found: dict[int, bytes] = {}
        for data, raw_bytes in self._database.rows(
            "SELECT data, raw_bytes FROM event_block WHERE file_id = ? AND last_seq >= ? AND first_seq <= ?",
            (file_id, low, high),
        ):
            known = read_lines(unpack(data, raw_bytes))
            for index, seq in enumerate(known.seqs):
                if seq is not None and seq in wanted:
                    found[seq] = known.line(index)
        return found

    def _append(self, file_id: int, lines: list[bytes], seqs: list[int]) -> None:
        """Add lines to the file's open block and to new ones after it."""
        if not lines:
            return
        num_events, number = self._database.rows(
            "SELECT num_events, num_blocks FROM event_file WHERE id = ?", (file_id,)
        )[0]
        total = num_events + len(lines)
        last = self._database.rows(
            "SELECT data, raw_bytes, number FROM event_block WHERE file_id = ? AND number = ? AND raw_bytes < ?",
            (file_id, number - 1, BLOCK_BYTES),
        )
        if last:
            data, raw_bytes, number = last[0]
            known = read_lines(unpack(data, raw_bytes))
            lines = [known.line(i) for i in range(len(known.ends))] + lines
            seqs = [seq or 0 for seq in known.seqs] + seqs
            self._database.run("DELETE FROM event_block WHERE file_id = ? AND number = ?", (file_id, number))
        rows = [_block_row(file_id, number + i, block) for i, block in enumerate(blocks_of(lines, seqs))]
        self._database.run_many("INSERT INTO event_block VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._database.run(
            "UPDATE event_file SET num_events = ?, num_blocks = ? WHERE id = ?", (total, number + len(rows), file_id)
        )

    def _keep_rejects(self, file_id: int, lines: LogLines, codes: Mapping[int, str], position: Position | None) -> int:
        """Keep what was rejected, each once, and return how many are new."""
        rows = []
        for index, code in codes.items():
            line = lines.line(index)
            place = f"line {sha256(line).hexdigest()[:32]}"
            if position is not None:
                place = f"byte {position.next_byte - len(lines.data) + lines.begin(index)}"
            kept = line[: 4096 if code == "version" else _KEPT_LINE_BYTES]
            rows.append((file_id, place, code, kept))
        if not rows:
            return 0
        count = "SELECT count(*) FROM reject WHERE file_id = ?"
        before = self._database.rows(count, (file_id,))[0][0]
        self._database.run_many("INSERT INTO reject VALUES (?, ?, ?, ?) ON CONFLICT (file_id, place) DO NOTHING", rows)
        return int(self._database.rows(count, (file_id,))[0][0] - before)

    def _move_on(self, file_id: int, position: Position | None, is_torn: bool) -> bool:
        """Keep the position, and return whether it says anything new of the file's torn end."""
        was_torn = bool(self._database.rows("SELECT is_torn FROM event_file WHERE id = ?", (file_id,))[0][0])
        is_now = was_torn or is_torn if position is None else position.is_torn
        if is_now != was_torn:
            self._database.run("UPDATE event_file SET is_torn = ? WHERE id = ?", (int(is_now), file_id))
        if position is not None:
            self._database.run(
                "INSERT INTO file_position VALUES (?, ?, ?, ?) ON CONFLICT (file_id) DO UPDATE SET "
                "next_byte = excluded.next_byte, head_crc = excluded.head_crc, tail_crc = excluded.tail_crc",
                (file_id, position.next_byte, position.head_crc, position.tail_crc),
            )
        return is_now != was_torn

    def _blocks(self, file_id: int) -> Iterator[bytes]:
        return (lines for _, lines in self._numbered_blocks(file_id, 0))

    def _numbered_blocks(self, file_id: int, first: int) -> Iterator[tuple[int, bytes]]:
        sql = "SELECT number, data, raw_bytes FROM event_block WHERE file_id = ? AND number >= ? ORDER BY number"
        for number, data, raw_bytes in self._database.rows(sql, (file_id, first)):
            yield number, unpack(data, raw_bytes)

    def _has_rejects(self, job_id: int) -> bool:
        sql = "SELECT 1 FROM reject r JOIN event_file f ON f.id = r.file_id WHERE f.job_id = ? LIMIT 1"
        return bool(self._database.rows(sql, (job_id,)))

    def _pieces(self, file_id: int, is_torn: bool) -> Iterator[bytes]:
        """The file as its reader must see it: what was rejected counts again, and its torn end is torn."""
        rejects = self._database.rows("SELECT place, code, line FROM reject WHERE file_id = ?", (file_id,))
        kept = enumerate(_counted(rejects))
        # A whole line of another version says which; of a longer one the store kept the beginning only.
        yield from (
            line if code == "version" and line.endswith(b"\n") else stand_in(code, n) for n, (code, line) in kept
        )
        yield from self._blocks(file_id)
        yield b"torn" if is_torn else b""


def _counted(rejects: Sequence[tuple[str, str, bytes]]) -> list[tuple[RejectCode, bytes]]:
    """What a reader of the file would count. A file that came both from a folder and line by line counts once."""
    kept: list[tuple[RejectCode, bytes]] = []
    codes: tuple[RejectCode, ...] = ("version", "bad_checksum", "malformed")
    for code in codes:
        from_folder = [line for place, kind, line in rejects if kind == code and place.startswith("byte ")]
        alone = [line for place, kind, line in rejects if kind == code and not place.startswith("byte ")]
        kept += [(code, bytes(line)) for line in max(from_folder, alone, key=len)]
    return kept


def _block_row(file_id: int, number: int, block: Block) -> tuple[object, ...]:
    return (file_id, number, block.first_seq, block.last_seq, len(block.seqs), len(block.lines), pack(block.lines))


def _checked_file(name: str) -> str:
    """Return the name of an event file: one folder, which is the attempt's number, and one file in it."""
    found = _FILE_NAME.fullmatch(name)
    if found is None or {found[1], found[2]} & {".", ".."} or not name.isprintable():
        raise UsageError(f"event file {name[:80]!r}", expected="ATTEMPT/NAME.jsonl, the path of the file under events/")
    return name


def _attempt_of(name: str) -> int:
    folder = name.partition("/")[0]
    return int(folder) if folder.isascii() and folder.isdecimal() and len(folder) < 10 else 0
