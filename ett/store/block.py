"""Blocks of log lines: some hundred lines of one file compressed together, which is a tenth of what rows would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from ett.errors import CorruptState

# An open block is rewritten until it is full: small enough to rewrite for one line, large enough to compress well.
BLOCK_BYTES = 256 << 10
_INT64 = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Lines back to back with the sequence number of each."""

    lines: bytes
    seqs: tuple[int, ...]

    @property
    def first_seq(self) -> int:
        return clamped(min(self.seqs))

    @property
    def last_seq(self) -> int:
        return clamped(max(self.seqs))


def clamped(number: int) -> int:
    """Return the number as near as a BIGINT comes: a line may carry any integer."""
    return max(-_INT64, min(_INT64, number))


def pack(lines: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(lines)


def unpack(data: bytes, raw_bytes: int) -> bytes:
    """Raises: CorruptState: the stored bytes are not what was stored."""
    try:
        lines = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_bytes)
    except zstandard.ZstdError as err:
        raise _damaged(str(err)) from err
    if len(lines) != raw_bytes:
        raise _damaged(f"{len(lines)} bytes instead of {raw_bytes}")
    return lines


def blocks_of(lines: list[bytes], seqs: list[int]) -> Iterator[Block]:
    """Yield the lines in blocks; a block ends with the line that fills it."""
    begin = size = 0
    for index, line in enumerate(lines):
        size += len(line)
        if size >= BLOCK_BYTES or index == len(lines) - 1:
            yield Block(lines=b"".join(lines[begin : index + 1]), seqs=tuple(seqs[begin : index + 1]))
            begin, size = index + 1, 0


def _damaged(why: str) -> CorruptState:
    return CorruptState(
        f"a block of events in the store is damaged: {why}",
        expected="the bytes that were written",
        do="restore the store's backup, or remove it and ingest the jobs' folders again: `ett ingest --all`",
    )
