"""The container of checkpoint data, RCKSEG1 (spec in docs/checkpoint.md): layout shared by writer and reader.

    "RCKSEG1\\0" | u32 header length | u32 crc32 of the header | header, canonical JSON
    sections, each at a multiple of 4096, zeros between them; a section is blocks back to back
    block index: one record of INDEX_DTYPE per block, in file order
    u32 crc32 of the index | u64 index offset | u64 index length | u64 file length
    xxh3_128 of every byte before it, 16 bytes big-endian | "RCKEND1\\0"

Integers are little-endian. crc32 is zlib's (polynomial 0xEDB88320).
"""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

MAGIC = b"RCKSEG1\0"
END_MAGIC = b"RCKEND1\0"
ALIGNMENT = 4096
PREFIX = struct.Struct("<8sII")
TRAILER = struct.Struct("<IQQQ16s8s")
HASH_AND_END_BYTES = 24
# Where files of commits lie. Whoever reads or deletes what a commit lists must never be led elsewhere.
PLACE = re.compile(r"(?:m|d|dense)(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.-]{1,255})+")
INDEX_DTYPE = np.dtype(
    [
        ("section", "<u2"),  # number of the section in the header's list
        ("codec", "<u2"),  # 0 raw; 1, 2: packed ids (id_codec.py)
        ("num_rows", "<u4"),
        ("offset", "<u8"),
        ("length", "<u8"),  # bytes in the file
        ("raw_length", "<u8"),  # bytes when unpacked
        ("min_id", "<i8"),  # first id of the rows; the value that packed differences start from
        ("max_id", "<i8"),
        ("xxh3_64", "<u8"),  # of the `length` bytes in the file
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentIdentity:
    """What a segment says it is, repeated in the commit manifest: a misplaced or renamed file is recognised by it."""

    ckpt_uuid: str
    seq_parent: int
    step: int
    table: str  # canonical name of the table; "" in a dense segment
    kind: str  # "base", "hot", "cold" or "dense"
    writer: int  # rank that wrote it
    part: int  # number of the segment among the writer's segments of this table

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: dict[str, Any], table: str) -> SegmentIdentity:
        """Return the identity that a manifest's entry of a file implies."""
        return cls(
            ckpt_uuid=entry["ckpt_uuid"],
            seq_parent=entry["seq"] - 1,
            step=entry["step"],
            table=table,
            kind=entry["kind"],
            writer=entry["writer"],
            part=entry["part"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file as the manifest lists it; the hash is the one in the file's trailer."""

    path: str
    bytes: int
    xxh3_128: str

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.bytes, "xxh3_128": self.xxh3_128}

    @classmethod
    def from_json(cls, entry: dict[str, Any], place: re.Pattern[str] = PLACE) -> StoredFile:
        """Return the file of an entry. Raises: LookupError, TypeError, ValueError: it is none of a commit's.

        Args: place: what its path matches.
        """
        if place.fullmatch(entry["path"]) is None:
            raise ValueError(f"the path {entry['path'][:200]!r} is not one that files like it have")
        if not is_count(entry["bytes"]):
            raise ValueError(f"{entry['path']} is {entry['bytes']!r} bytes")
        return cls(path=entry["path"], bytes=entry["bytes"], xxh3_128=entry["xxh3_128"])


def unhashed_end(stored: StoredFile) -> bytes:
    """Return the bytes at a file's end that its hash leaves out, a segment's: the hash itself, and the end magic."""
    return bytes.fromhex(stored.xxh3_128) + END_MAGIC if stored.path.endswith(".seg") else b""


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def padding_bytes(offset: int) -> int:
    """Return how many zeros lead from offset to the next multiple of ALIGNMENT."""
    return -offset % ALIGNMENT
