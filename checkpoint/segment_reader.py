"""Reads one RCKSEG1 segment and believes nothing: size, identity, index, padding and every block are checked."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.segment import (
    END_MAGIC,
    HASH_AND_END_BYTES,
    INDEX_DTYPE,
    MAGIC,
    PREFIX,
    TRAILER,
    SegmentIdentity,
    StoredFile,
    padding_bytes,
)
from ett.checkpoint.store import ObjectReader, Store
from ett.errors import CorruptState

Bytes = NDArray[np.uint8]
HASH_READ_BYTES = 16 << 20
END_BYTES = 64 << 10  # read at once at either end: the header there, trailer and index here
_HASH_BUFFERS = BufferPool()


class Segment:
    """An open segment whose envelope has been verified; blocks are verified when they are read."""

    def __init__(self, reader: ObjectReader, stored: StoredFile, identity: SegmentIdentity) -> None:
        self._reader = reader
        self._stored = stored
        self._identity = identity
        if reader.size != stored.bytes:
            raise self.corrupt(f"is {reader.size} bytes, the manifest says {stored.bytes}")
        if reader.size < PREFIX.size + TRAILER.size:
            raise self.corrupt(f"of {reader.size} bytes is too short for a segment")
        self._ends: list[tuple[int, bytes]] = []
        self._ends = self._read_ends()
        self.header, self._data_start = self._read_header()
        self.index = self._read_index()
        self._check_layout()

    def without_reader(self) -> Segment:
        """Return what is known of the segment, for `open_segment` to read from later; it holds nothing open."""
        known = copy(self)
        known._reader, known._ends = _NoReader(self._reader.size), []
        return known

    def corrupt(self, what: str) -> CorruptState:
        table = f"table {self._identity.table}" if self._identity.table else "dense state"
        return CorruptState(
            f"{table}: {self._stored.path} {what}",
            expected="the bytes that were committed",
            do="restore another commit",
        )

    def blocks(self, section: int) -> NDArray[np.void]:
        """Return the index records of one section, in file order."""
        chosen: NDArray[np.void] = self.index[self.index["section"] == section]
        return chosen

    def read_block(self, record: np.void, section_name: str, into: Bytes | None = None) -> Bytes:
        """Return the verified bytes of a block as uint8 [length], in `into` where that is given.

        Raises: CorruptState: names table, file, section and the range of ids.
        """
        length = int(record["length"])
        target = np.empty(length, np.uint8) if into is None else into[:length]
        got = self._read_into(int(record["offset"]), target)
        self._check_block(record, target[:got], section_name)
        return target

    def load(self, records: NDArray[np.void], into: Bytes) -> Bytes:
        """Read blocks that follow each other in one section in one go, and return what there was of them, unverified.

        Args: into: uint8, as long as the blocks are together.
        """
        return self.load_range(int(records[0]["offset"]), into)

    def load_range(self, offset: int, into: Bytes) -> Bytes:
        """Fill `into` from a place of the file, and return what there was, unverified."""
        return into[: self._read_into(offset, into)]

    def check(self, records: NDArray[np.void], section_name: str, found: Bytes) -> None:
        """Compare what `load` has read of blocks with their checksums. Raises: CorruptState: as `read_block`."""
        start = 0
        for record in records:
            end = start + int(record["length"])
            self._check_block(record, found[start:end], section_name)
            start = end

    def _check_block(self, record: np.void, found: Bytes, section_name: str) -> None:
        if len(found) == record["length"] and xxhash.xxh3_64_intdigest(found.data) == int(record["xxh3_64"]):
            return
        number = int(np.searchsorted(self.index["offset"], record["offset"]))
        where = f"block {number} (section {section_name}"
        if record["num_rows"]:
            where += f", rows with ids {record['min_id']} to {record['max_id']}"
        raise self.corrupt(f"{where}) does not match its checksum")

    def check_whole_hash(self) -> None:
        """Read the whole file and compare it with its own hash. Raises: CorruptState."""
        hasher, offset = xxhash.xxh3_128(), 0
        end = self._reader.size - HASH_AND_END_BYTES
        with _HASH_BUFFERS.taken(HASH_READ_BYTES) as buffer:
            while offset < end:
                part = buffer[: min(len(buffer), end - offset)]
                if self._read_into(offset, part) != len(part):
                    raise self.corrupt(f"ends at byte {offset}")
                hasher.update(part.data)
                offset += len(part)
        if hasher.hexdigest() != self._stored.xxh3_128:
            raise self.corrupt(f"has the hash {hasher.hexdigest()}, not {self._stored.xxh3_128}")

    def _read_into(self, offset: int, target: Bytes) -> int:
        for start, data in self._ends:
            if start <= offset and offset + len(target) <= start + len(data):
                target[:] = np.frombuffer(data, np.uint8)[offset - start : offset - start + len(target)]
                return len(target)
        try:
            return self._reader.read_into(offset, target.data)
        except FileNotFoundError as err:
            raise self.corrupt("is missing") from err
        except OSError as err:
            raise self.corrupt(f"cannot be read at byte {offset}: {err.strerror}") from err

    def _read_ends(self) -> list[tuple[int, bytes]]:
        """Return what lies at either end, with the offset of each; of a short file all, in one request."""
        size = self._reader.size
        if size <= 2 * END_BYTES:
            return [(0, self._read(0, size))]
        return [(at, self._read(at, END_BYTES)) for at in (0, size - END_BYTES)]

    def _read(self, offset: int, length: int) -> bytes:
        target = np.empty(length, np.uint8)
        got = self._read_into(offset, target)
        return target[:got].tobytes()

    def _read_header(self) -> tuple[dict[str, Any], int]:
        magic, length, crc = PREFIX.unpack(self._read(0, PREFIX.size))
        if magic != MAGIC:
            raise self.corrupt("does not begin as a segment does")
        # No bytes have the checksum 0: a hole of zeros over both would agree with itself.
        if not 0 < length <= self._reader.size - PREFIX.size:
            raise self.corrupt("has a damaged header")
        text = self._read(PREFIX.size, length)
        if zlib.crc32(text) != crc:
            raise self.corrupt("has a damaged header")
        header: dict[str, Any] = json.loads(text)
        expected = self._identity.as_json()
        found = {key: header.get(key) for key in expected}
        if found != expected:
            wrong = ", ".join(f"{k} {found[k]!r} for {v!r}" for k, v in expected.items() if found[k] != v)
            raise self.corrupt(f"belongs elsewhere: {wrong}")
        return header, PREFIX.size + length

    def _read_index(self) -> NDArray[np.void]:
        size = self._reader.size
        crc, offset, length, file_length, digest, end = TRAILER.unpack(self._read(size - TRAILER.size, TRAILER.size))
        if end != END_MAGIC:
            raise self.corrupt("does not end as a segment does")
        if digest.hex() != self._stored.xxh3_128:
            raise self.corrupt(f"carries the hash {digest.hex()}, the manifest says {self._stored.xxh3_128}")
        if file_length != size or offset + length + TRAILER.size != size or length % INDEX_DTYPE.itemsize:
            raise self.corrupt("has a damaged trailer")
        data = self._read(offset, length)
        if zlib.crc32(data) != crc:
            raise self.corrupt("has a damaged block index")
        self._index_offset = offset
        return np.frombuffer(data, INDEX_DTYPE)

    def _check_layout(self) -> None:
        """Blocks must fill the file up to the index, with nothing but zeros where a section is aligned."""
        section, offset = -1, self._data_start
        num_sections = len(self.header["sections"])
        for record in self.index:
            while section < int(record["section"]):
                section += 1
                self._check_padding(offset)
                offset += padding_bytes(offset)
            if int(record["section"]) != section or int(record["offset"]) != offset:
                raise self.corrupt("has a block index that does not tile the file")
            offset += int(record["length"])
        while section < num_sections - 1:
            section += 1
            self._check_padding(offset)
            offset += padding_bytes(offset)
        if offset != self._index_offset:
            raise self.corrupt("has a block index that does not tile the file")

    def _check_padding(self, offset: int) -> None:
        if any(self._read(offset, padding_bytes(offset))):
            raise self.corrupt(f"has data in the padding after byte {offset}")


class _NoReader:
    """Of a segment that is not open."""

    def __init__(self, size: int) -> None:
        self.size = size

    def read_into(self, offset: int, target: memoryview) -> int:
        raise AssertionError("a segment is read while it is not open")


@contextmanager
def open_segment(
    store: Store, stored: StoredFile, identity: SegmentIdentity, known: Segment | None = None
) -> Iterator[Segment]:
    """Open and check the envelope of a segment.

    Args: known: the same segment, `without_reader`: its envelope is not read once more.
    Raises: CorruptState: missing, torn, altered or another file.
    """
    with ExitStack() as stack:
        try:
            reader = stack.enter_context(store.open(stored.path))
            segment = Segment(reader, stored, identity) if known is None else copy(known)
        except FileNotFoundError as err:
            table = f"table {identity.table}" if identity.table else "dense state"
            raise CorruptState(f"{table}: {stored.path} is missing", do="restore another commit") from err
        segment._reader = reader
        yield segment
