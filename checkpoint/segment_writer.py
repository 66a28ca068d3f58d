"""Writes one RCKSEG1 segment front to back: every byte is hashed on its way and written once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash

from ett.checkpoint.canonical_json import canonical_json
from ett.checkpoint.segment import END_MAGIC, INDEX_DTYPE, MAGIC, PREFIX, TRAILER, padding_bytes


class Sink(Protocol):
    def write(self, data: memoryview | bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class BlockOfRows:
    """A block of one section as its record in the index has it."""

    num_rows: int
    id_range: tuple[int, int]
    checksum: int  # xxh3_64 of its bytes


@dataclass(frozen=True, slots=True)
class RowForm:
    """How the rows of a section lie in the file. raw_bytes: of a row when it is read."""

    row_bytes: int
    raw_bytes: int
    codec: int = 0


class SegmentWriter:
    """Header, then sections of blocks in the header's order, then `finish`."""

    def __init__(self, file: Sink, header: dict[str, Any]) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self._offset = 0
        self._records: list[tuple[int, ...]] = []
        text = canonical_json(header)
        self._write(PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text)

    def begin_section(self) -> None:
        self._write(bytes(padding_bytes(self._offset)))

    def write_block(
        self,
        section: int,
        payload: memoryview | bytes,
        *,
        codec: int = 0,
        num_rows: int = 0,
        raw_length: int | None = None,
        id_range: tuple[int, int] = (0, 0),
    ) -> None:
        """Append one block.

        Args:
            payload: what stands in the file.
            raw_length: its size when unpacked.
        """
        size = len(payload)
        raw = size if raw_length is None else raw_length
        checksum = xxhash.xxh3_64_intdigest(payload)
        self._records.append((section, codec, num_rows, self._offset, size, raw, *id_range, checksum))
        self._write(payload)

    def write_rows(self, section: int, payload: memoryview, blocks: Sequence[BlockOfRows], form: RowForm) -> None:
        """Append blocks of rows that lie one after the other in payload, in one piece."""
        offset = self._offset
        for block in blocks:
            size, raw = block.num_rows * form.row_bytes, block.num_rows * form.raw_bytes
            record = (section, form.codec, block.num_rows, offset, size, raw, *block.id_range, block.checksum)
            self._records.append(record)
            offset += size
        assert offset - self._offset == len(payload), (offset, self._offset, len(payload))
        self._write(payload)

    def finish(self) -> tuple[int, str]:
        """Write index and trailer; return (length of the file, its xxh3_128 in hexadecimal)."""
        index_offset = self._offset
        index = np.array(self._records, INDEX_DTYPE).tobytes()
        self._write(index)
        length = self._offset + TRAILER.size
        trailer = TRAILER.pack(zlib.crc32(index), index_offset, len(index), length, bytes(16), END_MAGIC)
        self._write(trailer[:-24])
        digest = self._hash.digest()
        self._file.write(digest + END_MAGIC)
        return length, digest.hex()

    def _write(self, data: memoryview | bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self._offset += len(data)
