"""Jobs as one JSONL file and back, without a loss: each record as it was written, with `_file`, where it was written.

A job begins with a line of its own (`ett.export/v1`) that carries what is no record: its name, launch.json and
recipe.json, and how many lines of each file were no records, so that a report of the export has the same warnings.
The checksum is left out, since it follows from the text. Records are merged by wall clock; a file keeps its order.
"""

from __future__ import annotations

import gzip
import heapq
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ett.errors import DataError, NotFound
from ett.event_reader import EventLog, read_files
from ett.store.log_lines import LogLines, RejectCode, read_lines, stand_in

SCHEMA = "ett.export/v1"
_FILE_KEY = b'{"_file":'
_WALL = re.compile(rb'"wall_ns":(-?[0-9]+)')
_CODES: tuple[RejectCode, ...] = ("version", "bad_checksum", "malformed")


@dataclass(kw_only=True, slots=True)
class ExportedJob:
    """A job of an export: `files` are bytes that a reader judges as it does the files that were exported."""

    job: str
    files: dict[str, bytes] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)

    def log(self) -> EventLog:
        return read_files([(name, partial(iter, (data,))) for name, data in sorted(self.files.items())])


def export_job(
    job: str, files: Iterable[tuple[str, bytes]], launch: Mapping[str, Any], recipe: Mapping[str, Any]
) -> Iterator[bytes]:
    """Yield the lines of one job's export, each with its LF.

    Args:
        files: (name under events/, bytes) of every event file.
    """
    lost: dict[str, dict[str, int]] = {}
    streams = []
    for name, data in files:
        whole, _, torn = data.rpartition(b"\n")
        lines = read_lines(whole + b"\n" if whole or data[:1] == b"\n" else b"")
        codes = Counter(lines.codes.values())
        is_last_bad = not torn and lines.codes.get(len(lines.ends) - 1) == "bad_checksum"
        codes["bad_checksum"] -= is_last_bad
        if counts := {code: n for code, n in codes.items() if n} | ({"torn": 1} if torn or is_last_bad else {}):
            lost[name] = counts
        streams.append(_records(name, lines))
    header = {"schema": SCHEMA, "job": job, "lost": lost, "launch": dict(launch), "recipe": dict(recipe)}
    yield json.dumps(header, separators=(",", ":")).encode() + b"\n"
    for _, line in heapq.merge(*streams, key=lambda item: item[0]):
        yield line


def read_export(path: Path) -> list[ExportedJob]:
    """Return the jobs of an export, which may be gzipped.

    Raises: NotFound: there is no such file. DataError: a line is none of an export (names it).
    """
    jobs: list[ExportedJob] = []
    parts: dict[str, list[bytes]] = {}
    for number, line in enumerate(_lines(path), start=1):
        if line.startswith(_FILE_KEY) and jobs:
            name, record = _split(line, path, number)
            parts.setdefault(name, []).append(record)
            continue
        header = _header(line, path, number)
        _close(jobs, parts)
        parts = _stand_ins(header)
        jobs.append(ExportedJob(job=str(header["job"]), launch=header["launch"], recipe=header["recipe"]))
    _close(jobs, parts)
    return jobs


def _records(name: str, lines: LogLines) -> Iterator[tuple[int, bytes]]:
    head = _FILE_KEY + json.dumps(name).encode() + b","
    seen: set[int] = set()
    for index, seq in enumerate(lines.seqs):
        if seq is None or seq in seen:
            continue
        seen.add(seq)
        body = lines.body(index)
        found = _WALL.search(body)
        yield int(found[1]) if found else 0, head + body.lstrip()[1:] + b"\n"


def _split(line: bytes, path: Path, number: int) -> tuple[str, bytes]:
    text = line.decode("utf-8", "surrogateescape")
    try:
        name, end = json.JSONDecoder().raw_decode(text, len(_FILE_KEY))
    except ValueError as err:
        raise _no_export(path, number) from err
    if not isinstance(name, str) or text[end : end + 1] != "," or not text.endswith("}\n"):
        raise _no_export(path, number)
    body = b"{" + text[end + 1 : -1].encode("utf-8", "surrogateescape")
    return name, b"%b\t%08x\n" % (body, zlib.crc32(body))


def _header(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError as err:
        raise _no_export(path, number) from err
    if not isinstance(header, dict) or header.get("schema") != SCHEMA or not isinstance(header.get("job"), str):
        raise _no_export(path, number)
    for name in ("lost", "launch", "recipe"):
        if not isinstance(header.setdefault(name, {}), dict):
            raise _no_export(path, number)
    return header


def _stand_ins(header: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """Lines of each file that count as those that were no records did; the torn end is the last."""
    parts: dict[str, list[bytes]] = {}
    for name, counts in header["lost"].items():
        known = {code: counts.get(code, 0) for code in (*_CODES, "torn")} if isinstance(counts, dict) else {}
        parts[name] = [stand_in(code, n) for code in _CODES for n in range(min(int(known.get(code) or 0), 10**6))]
        parts[name] += [b""] if known.get("torn") else []
    return parts


def _close(jobs: list[ExportedJob], parts: Mapping[str, list[bytes]]) -> None:
    if jobs:
        jobs[-1].files = {name: b"".join(_torn_last(lines)) for name, lines in parts.items()}


def _torn_last(lines: list[bytes]) -> list[bytes]:
    return [line or b"" for line in lines] + ([b"torn"] if b"" in lines else [])


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError as err:
        raise NotFound(f"export {path} does not exist", do="check the path") from err
    except (gzip.BadGzipFile, EOFError, zlib.error) as err:
        raise DataError(f"{path} is no whole gzip file: {err}", do="export it again") from err


def _no_export(path: Path, number: int) -> DataError:
    return DataError(
        f"{path}:{number} is no line of an export", expected=f"{SCHEMA}, as `ett export --format jsonl` writes it"
    )
