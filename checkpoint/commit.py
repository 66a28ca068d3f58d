"""A commit: the manifest that lists every live file of a checkpoint; its presence is the only proof that one exists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import xxhash

from ett.checkpoint.canonical_json import Json, canonical_json, seal, unseal, well_formed
from ett.checkpoint.dense_entry import DenseEntry
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.table_segments import TABLE_KINDS, TableFile, TableSpec
from ett.errors import ConfigError, CorruptState

MAJOR, MINOR = 1, 4
# What a reader must know to read a commit: segments; every row in a base, or also what changed since; the dense state
# as torch.distributed.checkpoint writes it, where it is not a segment; lists of files beside the record; and weights
# in fewer bits.
SEGMENTS, FULL, CHAIN, DENSE_FILES, FILE_LISTS = "seg.v1", "full.v1", "hotcold.v1", "dense.dcp.v1", "filelists.v1"
QUANTISED = "quantised.v1"
KNOWN_FEATURES = (FULL, CHAIN, SEGMENTS, DENSE_FILES, FILE_LISTS, QUANTISED)
MIN_READER = {FULL: "1.0", CHAIN: "1.1", DENSE_FILES: "1.2", FILE_LISTS: "1.3", QUANTISED: "1.4"}

CommitType = Literal["base", "delta", "rewrite", "epoch_open"]
_TABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it is part of file names
ReadList = Callable[[StoredFile], Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """A table with every file that is needed to read it: its base, and what changed since that no later file has.

    Of a row in several files that with the highest seq wins, be it a row or a tombstone.
    """

    spec: TableSpec
    num_rows: int  # that are left when the newest have won
    digest: str | None  # of those; None: only bases and rewrites need one
    files: tuple[TableFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.stored.bytes for file in self.files)

    @property
    def weight_bits(self) -> list[int]:
        """Return in how many bits an element some files have the weights, ascending; none where all are exact."""
        return sorted({file.weight_bits for file in self.files} - {0})

    def as_json(self) -> dict[str, Any]:
        weight, *states = self.spec.groups
        return {
            "id": self.spec.table_id,
            "fqn": self.spec.name,
            "rows": self.num_rows,
            "dim": self.spec.dim,
            "key_space": "int64",
            "weight_dtype": weight.dtype,
            "states": [
                {"name": state.name.removeprefix("state:"), "dtype": state.dtype, "width": state.width}
                for state in states
            ],
            "digest": self.digest,
            "files": [file.as_json(self.spec.dim) for file in self.files],
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> TableEntry:
        states = [ColumnGroup(f"state:{s['name']}", s["dtype"], s["width"]) for s in entry["states"]]
        groups = (ColumnGroup("weight", entry["weight_dtype"], entry["dim"]), *states)
        spec = TableSpec(table_id=entry["id"], name=entry["fqn"], dim=entry["dim"], groups=groups)
        if _TABLE_ID.fullmatch(spec.table_id) is None or min(spec.group_bytes) < 1:
            raise ValueError(f"a table {spec.table_id!r} of {spec.group_bytes} bytes a row")
        files = tuple(TableFile.from_json(file, entry["fqn"]) for file in entry["files"])
        return cls(spec=spec, num_rows=entry["rows"], digest=entry["digest"], files=files)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One numbered commit. An epoch_open repeats the files of the commit that was restored, or has none: a fresh start.

    It lists every live file of its whole chain: what reads or collects it never looks at another commit.
    epoch: counts the incarnations of the job; a writer that meets a higher one has been replaced and stops.
    step, cursor: completed optimizer steps and global samples consumed.
    fragments: one file per writing rank, in order of rank, with that rank's random generators.
    """

    seq: int
    parent_seq: int  # the commit that this one continues; commits between the two are abandoned
    type: CommitType
    ckpt_uuid: str
    write_id: str  # tells our own commit from another's when the answer to its creation was lost
    epoch: int
    job: str
    world_size: int
    step: int
    cursor: int
    created: str  # UTC, ISO 8601; for people, no rule reads it
    writer_version: str
    tables: tuple[TableEntry, ...]
    dense: DenseEntry | None  # None: a fresh start
    fragments: tuple[StoredFile, ...]
    opened_seq: int | None = None  # the commit that opened its writer's epoch; None: of an ett before 1.1
    lists: tuple[StoredFile, ...] = ()  # that name the tables' files, where the record does not (file_lists.py)
    policy: str = "full"  # what decides which rows a save writes
    stats: dict[str, Json] = field(default_factory=dict)  # of a save: its facts (save_facts.py)

    def overtakes(self, seq: int, epoch: int) -> bool:
        """Return whether a commit `seq` of an `epoch` was made by a process that this one's writer had replaced.

        Its number had been this writer's, and retention had freed it.
        """
        return epoch < self.epoch and self.opened_seq is not None and self.opened_seq <= seq < self.seq

    @property
    def is_fresh(self) -> bool:
        return self.dense is None

    def stored_files(self) -> list[StoredFile]:
        """Return every live file of this commit; collection is a union of these."""
        files = [file.stored for table in self.tables for file in table.files]
        dense = [file.stored for file in self.dense.files] if self.dense else []
        return [*files, *dense, *self.fragments, *self.lists]

    @property
    def num_bytes(self) -> int:
        return sum(file.bytes for file in self.stored_files())

    @property
    def digest(self) -> str | None:
        """Return one hash over all digests: two commits hold the same model if and only if it is equal.

        None where a table has none stored.
        """
        if any(table.digest is None for table in self.tables):
            return None
        parts = [[table.spec.name, table.num_rows, table.digest] for table in self.tables]
        return xxhash.xxh3_128_hexdigest(canonical_json([parts, self.dense.digest if self.dense else None]))

    @property
    def base_seq(self) -> int:
        """Return the oldest commit that rows were captured for; its own seq where it has none."""
        return min((file.seq for table in self.tables for file in table.files), default=self.files_seq)

    @property
    def chain_len(self) -> int:
        """Return how many commits after the oldest have captured rows that are needed."""
        return len({file.seq for table in self.tables for file in table.files} - {self.base_seq})

    def chain_bytes(self) -> dict[str, int]:
        """Return the bytes of the tables' files by kind."""
        totals = dict.fromkeys(TABLE_KINDS, 0)
        for table in self.tables:
            for file in table.files:
                totals[file.identity.kind] += file.stored.bytes
        return totals

    @property
    def features(self) -> list[str]:
        """Return what a reader must know; the last one decides how new it must be."""
        is_chain = any(file.identity.kind != "base" for table in self.tables for file in table.files)
        needed = [SEGMENTS, CHAIN if is_chain else FULL]
        needed += [DENSE_FILES] if self.dense and self.dense.dcp_version else []
        needed += [FILE_LISTS] * bool(self.lists)
        return needed + [QUANTISED] * any(table.weight_bits for table in self.tables)

    def to_bytes(self, *, with_files: bool = True) -> bytes:
        """Return the manifest; without files, as it is stored beside its lists."""
        tables = [table.as_json() | ({} if with_files else {"files": []}) for table in self.tables]
        lists = {"file_lists": [stored.as_json() for stored in self.lists]} if self.lists else {}
        return seal(
            {
                "format": "rckpt",
                "document": "commit",
                "major": MAJOR,
                "minor": MINOR,
                "min_reader": MIN_READER[self.features[-1]],
                "features_required": sorted(self.features),
                "features_optional": [],
                "policy": self.policy,
                "seq": self.seq,
                "parent_seq": self.parent_seq,
                "type": self.type,
                "ckpt_uuid": self.ckpt_uuid,
                "write_id": self.write_id,
                "epoch": self.epoch,
                "opened_seq": self.opened_seq,
                "job_id": self.job,
                "world_size": self.world_size,
                "step": self.step,
                "cursor": self.cursor,
                "created": self.created,
                "writer_version": self.writer_version,
                "base_seq": self.base_seq,
                "chain_len": self.chain_len,
                "chain_bytes": self.chain_bytes(),
                "tables": tables,
                "dense": self.dense.as_json() if self.dense else None,
                "fragments": [fragment.as_json() for fragment in self.fragments],
                "stats": self.stats,
                **lists,
            }
        )

    @property
    def files_seq(self) -> int:
        """Return the seq that this commit's state was captured for: an epoch_open's is that of an earlier commit."""
        return self.dense.identity.seq_parent + 1 if self.dense else self.seq


def parse_commit(data: bytes, name: str, read_list: ReadList | None = None) -> Commit:
    """Return the commit that a manifest's bytes hold.

    Args: read_list: returns the content of a list of files, verified; None where the manifest has the files itself.
    Raises: CorruptState: any byte is not as written, or the manifest stands under another's name.
        ConfigError: a version or feature that this ett does not know.
    """
    fields = unseal(data)
    if fields is None or fields.get("document") != "commit":
        raise CorruptState(f"{name} does not match its checksum", do="restore another commit")
    with well_formed(name):
        return _commit_of(fields, name, read_list)


def _commit_of(fields: dict[str, Any], name: str, read_list: ReadList | None) -> Commit:
    _refuse_newer(fields, name)
    if name != commit_name(fields["seq"]):
        raise CorruptState(f"{name} holds commit {fields['seq']}", do="restore another commit")
    lists = tuple(StoredFile.from_json(entry) for entry in fields.get("file_lists", []))
    if read_list is not None:
        _add_files(fields["tables"], (read_list(stored) for stored in lists))
    assert not lists or any(table["files"] for table in fields["tables"]), "a stored record, without its lists"
    return Commit(
        seq=fields["seq"],
        parent_seq=fields["parent_seq"],
        type=fields["type"],
        ckpt_uuid=fields["ckpt_uuid"],
        write_id=fields["write_id"],
        epoch=fields["epoch"],
        opened_seq=fields.get("opened_seq"),
        job=fields["job_id"],
        world_size=fields["world_size"],
        step=fields["step"],
        cursor=fields["cursor"],
        created=fields["created"],
        writer_version=fields["writer_version"],
        tables=tuple(TableEntry.from_json(entry) for entry in fields["tables"]),
        dense=DenseEntry.from_json(fields["dense"]) if fields["dense"] else None,
        fragments=tuple(StoredFile.from_json(entry) for entry in fields["fragments"]),
        lists=lists,
        policy=fields["policy"],
        stats=dict(fields["stats"]),
    )


def _add_files(tables: list[Json], lists: Iterable[Json]) -> None:
    of_table = {table["id"]: table["files"] for table in tables}
    for document in lists:
        for part in document["tables"]:
            of_table[part["id"]] += part["files"]


def _refuse_newer(fields: dict[str, Any], name: str) -> None:
    """Raise ConfigError for a commit that this reader would misunderstand; a higher minor alone is none."""
    major, unknown, needed = fields["major"], list[str](), "another major"
    if major == MAJOR:
        unknown, needed = sorted(set(fields["features_required"]) - set(KNOWN_FEATURES)), fields["min_reader"]
        if tuple(int(part) for part in needed.split(".")) <= (MAJOR, MINOR) and not unknown:
            return
    raise ConfigError(
        f"{name} is of format {major}.{fields.get('minor', '?')}, for readers of {needed} and later, "
        f"with {', '.join(unknown) or 'known features'}",
        expected=f"format {MAJOR}, for readers of {MAJOR}.{MINOR}, with {', '.join(KNOWN_FEATURES)}",
        do="use the ett that wrote it, or a newer one",
    )


def commit_name(seq: int) -> str:
    return f"commits/{seq:016d}.json"
