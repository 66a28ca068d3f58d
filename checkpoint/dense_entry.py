"""What a commit says of the dense state: its files, and in which of two forms they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ett.checkpoint.segment import SegmentIdentity, StoredFile

METADATA_NAME, DOCUMENT_NAME = ".metadata", "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseFile:
    stored: StoredFile
    writer: int  # rank that wrote it


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseEntry:
    """The files of torch.distributed.checkpoint with a JSON document beside them; up to format 1.1 one segment.

    dcp_version: of torch's layout, "1.0.0"; None: a segment (dense_segment.py).
    """

    identity: SegmentIdentity
    files: tuple[DenseFile, ...]
    num_items: int  # tensors
    digest: str
    dcp_version: str | None

    @property
    def num_bytes(self) -> int:
        return sum(file.stored.bytes for file in self.files)

    def named(self, name: str) -> StoredFile:
        """Return the file of a name within the folder; `METADATA_NAME` and `DOCUMENT_NAME` are always there."""
        found = [file.stored for file in self.files if file.stored.path.rpartition("/")[2] == name]
        if len(found) != 1:
            raise LookupError(f"the dense state has {len(found)} files {name}")
        return found[0]

    def as_json(self) -> dict[str, Any]:
        whose = self.identity
        facts = {"n_items": self.num_items, "digest": self.digest, "bytes": self.num_bytes}
        place = {"ckpt_uuid": whose.ckpt_uuid, "seq": whose.seq_parent + 1, "step": whose.step}
        if self.dcp_version is None:
            (file,) = self.files
            role = {"kind": whose.kind, "writer": whose.writer, "part": whose.part}
            return {**facts, "files": [{**file.stored.as_json(), **place, **role}]}
        files = [{**file.stored.as_json(), "writer": file.writer} for file in self.files]
        return {**facts, **place, "dir": dense_folder(whose), "dcp_version": self.dcp_version, "files": files}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> DenseEntry:
        version = entry.get("dcp_version")
        place = entry["files"][0] if version is None else {**entry, "kind": "dense", "writer": 0, "part": 0}
        files = tuple(DenseFile(stored=StoredFile.from_json(f), writer=f["writer"]) for f in entry["files"])
        found = cls(
            identity=SegmentIdentity.from_json(place, ""),
            files=files,
            num_items=entry["n_items"],
            digest=entry["digest"],
            dcp_version=version,
        )
        for name in (METADATA_NAME, DOCUMENT_NAME) if version is not None else ():
            found.named(name)
        return found


def dense_folder(identity: SegmentIdentity) -> str:
    return f"dense/{identity.ckpt_uuid}"
