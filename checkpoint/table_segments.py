"""A table's rows in segments: what a table, a file of it and some of its rows are; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.segment import SegmentIdentity, StoredFile, is_count

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int64]
BLOCK_BYTES = 2 << 20  # of weights in a block: the unit of checksums and of what a restore may skip
# Of weights and states in a segment: each thread of a save or a restore holds one in memory, and a store of objects
# takes and gives 64 MiB in one request.
SEGMENT_BYTES = 64 << 20
# All rows; of the rows that change often, those changed since the base; of the others, those since the last commit.
TABLE_KINDS = ("base", "hot", "cold")
IDS, TOMBSTONES = "ids", "tombstones"


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """What a table looks like in files: its canonical name, its number there, the weight and every state."""

    table_id: str  # "t0003": names may hold characters that a file name must not
    name: str
    dim: int
    groups: tuple[ColumnGroup, ...]  # the weight first

    @property
    def row_bytes(self) -> int:
        return sum(group.row_bytes for group in self.groups)

    @property
    def group_bytes(self) -> tuple[int, ...]:
        return tuple(group.row_bytes for group in self.groups)

    @property
    def block_rows(self) -> int:
        return max(256, 1 << (BLOCK_BYTES // self.groups[0].row_bytes).bit_length() - 1)

    @property
    def segment_rows(self) -> int:
        """Return how many rows a segment holds at most: whole blocks."""
        return max(self.block_rows, SEGMENT_BYTES // self.row_bytes // self.block_rows * self.block_rows)

    def sections(self, *, has_tombstones: bool, weight_bits: int = 0) -> list[dict[str, Any]]:
        """Return the sections of a segment as its header lists them."""
        named: list[dict[str, Any]] = [{"name": IDS, "dtype": "int64", "width": 1}]
        named += [{"name": group.name, "dtype": group.dtype, "width": group.width} for group in self.groups]
        named[1] |= {"bits": weight_bits} if weight_bits else {}
        return named + [{"name": TOMBSTONES, "dtype": "int64", "width": 1}] * has_tombstones


@dataclass(frozen=True, slots=True)
class Rows:
    """ids: int64 [N], strictly ascending. columns: uint8 [N, row_bytes] for each group of the spec."""

    ids: Ids
    columns: tuple[Bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """One segment of a table, as the manifest lists it."""

    stored: StoredFile
    identity: SegmentIdentity
    num_rows: int
    num_tombstones: int
    min_id: int  # of rows and tombstones
    max_id: int
    weight_bits: int = 0  # of an element of the weights, where they are quantised (quantised_rows.py)

    @property
    def seq(self) -> int:
        """Return the commit that its rows were captured for; of two files with a row, the one with the higher wins."""
        return self.identity.seq_parent + 1

    def as_json(self, dim: int) -> dict[str, Any]:
        return {
            **self.stored.as_json(),
            "ckpt_uuid": self.identity.ckpt_uuid,
            "seq": self.seq,
            "step": self.identity.step,
            "kind": self.identity.kind,
            "writer": self.identity.writer,
            "part": self.identity.part,
            "rows": [self.min_id, self.max_id + 1],
            "cols": [0, dim],
            "n_rows": self.num_rows,
            "n_tomb": self.num_tombstones,
            "min_id": self.min_id,
            "max_id": self.max_id,
            **({"weight_bits": self.weight_bits} if self.weight_bits else {}),
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any], table: str) -> TableFile:
        stored = StoredFile.from_json(entry)
        counts = entry["n_rows"], entry["n_tomb"]
        if not all(map(is_count, counts)) or counts[0] > stored.bytes or entry["kind"] not in TABLE_KINDS:
            raise ValueError(f"{stored.path} is a {entry['kind']!r} of {counts} rows and tombstones")
        return cls(
            stored=stored,
            identity=SegmentIdentity.from_json(entry, table),
            num_rows=entry["n_rows"],
            num_tombstones=entry["n_tomb"],
            min_id=entry["min_id"],
            max_id=entry["max_id"],
            weight_bits=entry.get("weight_bits", 0),
        )


def segment_folder(ckpt_uuid: str, writer: int) -> str:
    """Return the folder of a writer's segments; two digits of a hash spread the names of an object store."""
    spread = xxhash.xxh3_64_hexdigest(f"{ckpt_uuid}/{writer}".encode())[:2]
    return f"d/{spread}/{ckpt_uuid}"
