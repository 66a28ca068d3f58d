"""The body of `POST /v1/events`: blocks of log lines, each line byte for byte as it stands in its file.

A block is one JSON object on a line of its own, `{"job": …, "file": "1/r0-….jsonl", "lines": N}`, then N lines, each
with its line feed. A body is one block after another. Nothing is escaped, so nothing can be changed on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ett.errors import DataError
from ett.job_folder import JOB_NAME

CONTENT_TYPE = "application/x-ett-events"
MAX_LINES = 20_000  # of a body: bounds what a reply can name one by one
# The path below events/: a folder named for the attempt, and a file of it. A name decides nothing on the server's disk.
FILE_NAME = re.compile(r"\d{1,9}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\.jsonl")
_MAX_HEADER_BYTES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Whole lines, with their line feeds, of one file of one job."""

    job: str
    file: str
    lines: tuple[bytes, ...]


def encode(blocks: Iterable[Block]) -> bytes:
    parts: list[bytes] = []
    for block in blocks:
        header = {"job": block.job, "file": block.file, "lines": len(block.lines)}
        parts.append(json.dumps(header, separators=(",", ":")).encode() + b"\n")
        parts.extend(block.lines)
    return b"".join(parts)


def decode(body: bytes) -> list[Block]:
    """Return the blocks of a body.

    Raises: DataError: a block's head is no such object, names no possible job or file, or its lines are not all there.
    """
    if body and not body.endswith(b"\n"):
        raise DataError("the body ends inside a line", expected="every line with its line feed")
    lines = body.split(b"\n")
    lines.pop()
    blocks: list[Block] = []
    position = 0
    while position < len(lines):
        job, file, count = _head(lines[position], position)
        position += 1
        if len(lines) - position < count:
            raise DataError(f"line {position}: {len(lines) - position} lines follow", expected=f"{count}, as it says")
        blocks.append(
            Block(job=job, file=file, lines=tuple(line + b"\n" for line in lines[position : position + count]))
        )
        position += count
    return blocks


def _head(line: bytes, number: int) -> tuple[str, str, int]:
    expected = '{"job": NAME, "file": "ATTEMPT/NAME.jsonl", "lines": N}'
    try:
        head = json.loads(line) if len(line) <= _MAX_HEADER_BYTES else None
    except ValueError:
        head = None
    if not isinstance(head, dict):
        raise DataError(f"line {number} of the body is no block's head", expected=expected)
    job, file, count = head.get("job"), head.get("file"), head.get("lines")
    if not isinstance(job, str) or not JOB_NAME.fullmatch(job):
        raise DataError(f"line {number} of the body: job {str(job)[:80]!r}", expected="a job's name")
    if not isinstance(file, str) or not FILE_NAME.fullmatch(file):
        raise DataError(f"line {number} of the body: file {str(file)[:80]!r}", expected="ATTEMPT/NAME.jsonl")
    if type(count) is not int or not 0 <= count <= MAX_LINES:
        raise DataError(f"line {number} of the body: lines {str(count)[:20]}", expected=f"0 to {MAX_LINES}")
    return job, file, count
