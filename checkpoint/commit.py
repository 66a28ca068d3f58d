"""A commit: the manifest that lists every live file of a checkpoint; its presence is the only proof that one exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import xxhash

from ett.checkpoint.canonical_json import canonical_json, seal, unseal
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.table_segments import TableFile, TableSpec
from ett.errors import ConfigError, CorruptState

MAJOR, MINOR = 1, 0
FEATURES_REQUIRED = ["full.v1", "seg.v1"]

CommitType = Literal["base", "epoch_open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    spec: TableSpec
    num_rows: int
    digest: str
    files: tuple[TableFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.stored.bytes for file in self.files)

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
        files = tuple(TableFile.from_json(file, entry["fqn"]) for file in entry["files"])
        return cls(spec=spec, num_rows=entry["rows"], digest=entry["digest"], files=files)


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseEntry:
    stored: StoredFile
    identity: SegmentIdentity
    num_items: int
    digest: str

    def as_json(self) -> dict[str, Any]:
        whose = self.identity
        file = {
            **self.stored.as_json(),
            "ckpt_uuid": whose.ckpt_uuid,
            "seq": whose.seq_parent + 1,
            "step": whose.step,
            "kind": whose.kind,
            "writer": whose.writer,
            "part": whose.part,
        }
        return {"n_items": self.num_items, "digest": self.digest, "bytes": self.stored.bytes, "files": [file]}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> DenseEntry:
        (file,) = entry["files"]
        return cls(
            stored=StoredFile.from_json(file),
            identity=SegmentIdentity.from_json(file, ""),
            num_items=entry["n_items"],
            digest=entry["digest"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One numbered commit. An epoch_open repeats the files of the commit that was restored, or has none: a fresh start.

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
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def is_fresh(self) -> bool:
        return self.dense is None

    def stored_files(self) -> list[StoredFile]:
        """Return every live file of this commit; collection is a union of these."""
        files = [file.stored for table in self.tables for file in table.files]
        return [*files, *([self.dense.stored] if self.dense else []), *self.fragments]

    @property
    def num_bytes(self) -> int:
        return sum(file.bytes for file in self.stored_files())

    @property
    def digest(self) -> str:
        """Return one hash over all digests: two commits hold the same model if and only if it is equal."""
        parts = [[table.spec.name, table.num_rows, table.digest] for table in self.tables]
        return xxhash.xxh3_128_hexdigest(canonical_json([parts, self.dense.digest if self.dense else None]))

    def to_bytes(self) -> bytes:
        return seal(
            {
                "format": "rckpt",
                "document": "commit",
                "major": MAJOR,
                "minor": MINOR,
                "min_reader": f"{MAJOR}.0",
                "features_required": FEATURES_REQUIRED,
                "features_optional": [],
                "policy": "full",
                "seq": self.seq,
                "parent_seq": self.parent_seq,
                "type": self.type,
                "ckpt_uuid": self.ckpt_uuid,
                "write_id": self.write_id,
                "epoch": self.epoch,
                "job_id": self.job,
                "world_size": self.world_size,
                "step": self.step,
                "cursor": self.cursor,
                "created": self.created,
                "writer_version": self.writer_version,
                "base_seq": self.files_seq,
                "tables": [table.as_json() for table in self.tables],
                "dense": self.dense.as_json() if self.dense else None,
                "fragments": [fragment.as_json() for fragment in self.fragments],
                "stats": self.stats,
            }
        )

    @property
    def files_seq(self) -> int:
        """Return the seq at which the files of this commit were captured."""
        return self.dense.identity.seq_parent + 1 if self.dense else self.seq


def parse_commit(data: bytes, name: str) -> Commit:
    """Return the commit that a manifest's bytes hold.

    Raises: CorruptState: any byte is not as written, or the manifest stands under another's name.
        ConfigError: a version or feature that this ett does not know.
    """
    fields = unseal(data)
    if fields is None or fields.get("document") != "commit":
        raise CorruptState(f"{name} does not match its checksum", do="restore another commit")
    unknown = sorted(set(fields["features_required"]) - set(FEATURES_REQUIRED))
    if fields["major"] != MAJOR or unknown:
        raise ConfigError(
            f"{name} is of format {fields['major']}.{fields['minor']} with {', '.join(unknown) or 'known features'}",
            expected=f"format {MAJOR} with {', '.join(FEATURES_REQUIRED)}",
            do="use the ett that wrote it, or a newer one",
        )
    if name != commit_name(fields["seq"]):
        raise CorruptState(f"{name} holds commit {fields['seq']}", do="restore another commit")
    return Commit(
        seq=fields["seq"],
        parent_seq=fields["parent_seq"],
        type=fields["type"],
        ckpt_uuid=fields["ckpt_uuid"],
        write_id=fields["write_id"],
        epoch=fields["epoch"],
        job=fields["job_id"],
        world_size=fields["world_size"],
        step=fields["step"],
        cursor=fields["cursor"],
        created=fields["created"],
        writer_version=fields["writer_version"],
        tables=tuple(TableEntry.from_json(entry) for entry in fields["tables"]),
        dense=DenseEntry.from_json(fields["dense"]) if fields["dense"] else None,
        fragments=tuple(StoredFile.from_json(entry) for entry in fields["fragments"]),
        stats=fields["stats"],
    )


def commit_name(seq: int) -> str:
    return f"commits/{seq:016d}.json"
