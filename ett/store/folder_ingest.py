"""A job's folder -> the store: only what its files grew by since the last time, each piece in one transaction.

The position in a file is kept in the transaction that stores its lines, so a crash at any moment neither loses nor
doubles one. A torn end waits for the rest of its line. A file that was cut or replaced is noticed by its size and by
the bytes around the kept position; it is read again from its beginning, where its keys tell old from new.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ett.event_reader import event_files
from ett.job_folder import JobFolder, read_json
from ett.launch_plan import shared_launch
from ett.store.export_jsonl import ExportedJob
from ett.store.job_row import plain_text
from ett.store.job_store import Position, Store
from ett.store.log_lines import LogLines, RejectCode, read_lines

PIECE_BYTES = 4 << 20  # read, checked and committed at once
_WITNESS_BYTES = 4096  # at the head of a file, and before the kept position


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderIngest:
    """What one reading of a job's folder brought. `notes` say what a person should know about its files."""

    job: str
    files: int = 0
    accepted: int = 0
    duplicate: int = 0
    rejected: tuple[tuple[RejectCode, str], ...] = ()
    notes: tuple[str, ...] = ()


def ingest_folder(store: Store, job: str, path: Path, *, sum_up: bool = True) -> FolderIngest:
    """Take what is new under `path`, a job's folder or its events/ folder, and sum the job up unless told not to.

    Raises: NotFound: there is no such folder. Conflict, Unreachable, AccessDenied: what was read before is stored.
    """
    files = event_files(path)
    store.add_job(job)
    total = FolderIngest(job=job)
    for file in files:
        total = _ingest_file(store, total, f"{file.parent.name}/{file.name}", file)
    folder = JobFolder(path)
    _keep_texts(store, job, shared_launch(read_json(folder.launch_file)), read_json(folder.recipe_file))
    if sum_up:
        store.sum_up_if_stale(job)
    return total


def ingest_export(store: Store, exported: ExportedJob, job: str) -> FolderIngest:
    """Take the records of an exported job, under that name, and sum the job up. Raises: as `ingest_folder` does."""
    store.add_job(job)
    accepted = duplicate = 0
    rejected: list[tuple[RejectCode, str]] = []
    for name, data in sorted(exported.files.items()):
        whole, _, torn = data.rpartition(b"\n")
        result = store.ingest_lines(job, name, read_lines(whole + b"\n" if whole else b""), is_torn=bool(torn))
        accepted, duplicate = accepted + result.accepted, duplicate + result.duplicate
        rejected += [(r.code, f"{name}: {r.text}") for r in result.rejected]
    _keep_texts(store, job, exported.launch, exported.recipe)
    store.sum_up_if_stale(job)
    return FolderIngest(
        job=job, files=len(exported.files), accepted=accepted, duplicate=duplicate, rejected=tuple(rejected)
    )


def _keep_texts(store: Store, job: str, launch: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    found = tuple(plain_text(json.dumps(value)) for value in (launch, recipe))
    if found != ("{}", "{}") and found != store.texts(job):
        store.set_texts(job, launch=found[0], recipe=found[1])


def _ingest_file(store: Store, total: FolderIngest, name: str, path: Path) -> FolderIngest:
    known = store.position(total.job, name)
    notes = list(total.notes)
    rejected = list(total.rejected)
    accepted, duplicate = total.accepted, total.duplicate
    with path.open("rb") as file:
        begin = 0 if known is None else known.next_byte
        if known is not None and (why := _changed(file, known)):
            notes.append(f"{name} {why}: read again from its beginning")
            begin = 0
        for lines, position in _pieces(file, begin):
            if position == known:
                break  # nothing new
            result = store.ingest_lines(total.job, name, lines, position)
            accepted, duplicate = accepted + result.accepted, duplicate + result.duplicate
            rejected += [
                (r.code, f"{name}, byte {begin + lines.begin(r.line_index)}: {r.text}") for r in result.rejected
            ]
            begin = position.next_byte
    return replace(
        total,
        files=total.files + 1,
        accepted=accepted,
        duplicate=duplicate,
        rejected=tuple(rejected),
        notes=tuple(notes),
    )


def _pieces(file: BinaryIO, begin: int) -> Iterator[tuple[LogLines, Position]]:
    """Yield whole lines from byte `begin` on and where they end; once at least."""
    size = os.fstat(file.fileno()).st_size
    while True:
        data = _whole_lines(file, begin, size)
        is_last = begin + len(data) == size or not data
        lines = read_lines(data)
        if is_last and lines.codes.get(len(lines.ends) - 1) == "bad_checksum" and begin + len(data) == size:
            # The last line may have lost its end and found a later LF: until another follows it is torn, not corrupt.
            data = data[: lines.begin(len(lines.ends) - 1)]
            lines = read_lines(data)
        begin += len(data)
        yield lines, _position(file, begin, is_torn=is_last and begin < size)
        if is_last:
            return


def _whole_lines(file: BinaryIO, begin: int, size: int) -> bytes:
    """Return about PIECE_BYTES of whole lines, or one that is longer; nothing where no line ends before `size`."""
    wanted = PIECE_BYTES
    while True:
        data = os.pread(file.fileno(), min(wanted, size - begin), begin)
        end = data.rfind(b"\n") + 1
        if end or begin + len(data) >= size or not data:
            return data[:end]
        wanted *= 2


def _position(file: BinaryIO, next_byte: int, *, is_torn: bool) -> Position:
    tail = max(0, next_byte - _WITNESS_BYTES)
    return Position(
        next_byte=next_byte,
        head_crc=zlib.crc32(os.pread(file.fileno(), min(_WITNESS_BYTES, next_byte), 0)),
        tail_crc=zlib.crc32(os.pread(file.fileno(), next_byte - tail, tail)),
        is_torn=is_torn,
    )


def _changed(file: BinaryIO, known: Position) -> str:
    """Return what happened to a file that is not the one that was read; empty where it only grew."""
    size = os.fstat(file.fileno()).st_size
    if size < known.next_byte:
        return f"was cut from at least {known.next_byte} to {size} bytes"
    return "" if _position(file, known.next_byte, is_torn=known.is_torn) == known else "was replaced or changed"
