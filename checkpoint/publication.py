"""A publication: the manifest of a serving artefact that was made from one commit; an artefact exists when it does.

    publications/<number>.json          manifests: the highest number is the newest
    artefacts/<key>/<table>-<part>.safetensors, dense.safetensors, and a record beside each of what it is

The key is a hash of the state and of the settings: whoever publishes the same writes the same bytes under the same
names (docs/publish.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ett.checkpoint.canonical_json import Json, seal, unseal, well_formed
from ett.checkpoint.segment import StoredFile, is_count
from ett.errors import ConfigError, CorruptState

FORMAT, MAJOR, MINOR = "ettpub", 1, 0
FOLDER, ARTEFACTS = "publications", "artefacts"
_PLACE = re.compile(ARTEFACTS + r"/[0-9a-f]{32}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")

Kind = Literal["full", "delta"]


class DamagedPublication(CorruptState):
    """What is published is damaged, not the commit that is to be."""


@contextmanager
def of_publication() -> Iterator[None]:
    """Have damage that is met within be that of a publication."""
    try:
        yield
    except CorruptState as err:
        given = {"expected": err.expected, "do": err.do, "did": err.did, "code": err.code}
        raise DamagedPublication(err.fact, **given) from err


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFile:
    """A safetensors file with rows of a table, ascending by id.

    digest: of the rows as they are in it, ids and what stands for the weights (digest.py). ids_xxh3_128: of its ids,
    for who reads them alone. source_rows, source_digest: of the rows that it was made from, with their optimizer
    states; more where some were pruned.
    """

    stored: StoredFile
    num_rows: int
    min_id: int
    max_id: int
    digest: str
    ids_xxh3_128: str
    source_rows: int
    source_digest: str

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "stored": self.stored.as_json()}

    @classmethod
    def from_json(cls, entry: Json) -> PartFile:
        counts = [entry["num_rows"], entry["source_rows"]]
        if not all(map(is_count, counts)):
            raise ValueError(f"a file of {counts} rows")
        return cls(**{**entry, "stored": published_file(entry["stored"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedTable:
    """num_rows: of the table that a reader has afterwards. num_pruned: live rows of the commit that are not in it.

    weight_bits: 8 or 4 where a row is stored as quantised_rows.py says; 0: as it was. source_digest: of the commit's
    table; None: of a delta, which does not read all of it. kind: "full": files has all rows; "delta": those that
    changed since the publication before, and gone has the ids that are there no more.
    """

    kind: Kind

    table_id: str
    name: str
    dim: int
    dtype: str
    weight_bits: int
    num_rows: int
    num_pruned: int
    source_digest: str | None
    files: tuple[PartFile, ...]
    gone: tuple[PartFile, ...]

    def as_json(self) -> dict[str, Any]:
        files = {name: [file.as_json() for file in getattr(self, name)] for name in ("files", "gone")}
        return {**asdict(self), **files}

    @classmethod
    def from_json(cls, entry: Json) -> PublishedTable:
        files = {name: tuple(PartFile.from_json(file) for file in entry[name]) for name in ("files", "gone")}
        return cls(**{**entry, **files})


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedDense:
    """The model's dense tensors, under the names of its state_dict. source_digest: of the commit's dense state."""

    stored: StoredFile
    num_tensors: int
    source_digest: str

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "stored": self.stored.as_json()}

    @classmethod
    def from_json(cls, entry: Json) -> PublishedDense:
        return cls(**{**entry, "stored": published_file(entry["stored"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """The commit that was published. state_seq: the commit that its rows were captured for. life: of the job, whose
    name another one may have.
    """

    job: str
    uri: str
    seq: int
    state_seq: int
    ckpt_uuid: str
    epoch: int
    step: int
    cursor: int
    created: str
    writer_version: str
    life: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """base, base_key: of the publication that a delta follows; a full one has none."""

    number: int
    key: str
    base: int | None
    base_key: str | None
    created: str  # UTC, ISO 8601; for people, no rule reads it
    publisher_version: str
    lineage: Lineage
    settings: Json  # of PublishSettings
    tables: tuple[PublishedTable, ...]
    dense: PublishedDense

    @property
    def kind(self) -> Kind:
        return "full" if self.base is None else "delta"

    def stored_files(self) -> list[StoredFile]:
        parts = [file.stored for table in self.tables for file in (*table.files, *table.gone)]
        return [*parts, self.dense.stored]

    @property
    def num_bytes(self) -> int:
        return sum(stored.bytes for stored in self.stored_files())

    def to_bytes(self) -> bytes:
        fields = {
            **asdict(self),
            "tables": [table.as_json() for table in self.tables],
            "dense": self.dense.as_json(),
        }
        return seal({"format": FORMAT, "document": "publication", "major": MAJOR, "minor": MINOR, **fields})


def parse_publication(data: bytes, name: str) -> Publication:
    """Return the publication that a manifest's bytes hold.

    Raises: CorruptState: any byte is not as written, or it stands under another's name. ConfigError: a newer format.
    """
    fields = unseal(data)
    if fields is None or fields.pop("document", None) != "publication" or fields.pop("format", None) != FORMAT:
        raise CorruptState(f"{name} does not match its checksum", do="publish again: the next number is taken")
    with well_formed(name):
        return _publication_of(fields, name)


def _publication_of(fields: Json, name: str) -> Publication:
    found = fields.pop("major"), fields.pop("minor")
    if found[0] != MAJOR:
        raise ConfigError(
            f"{name} is of format {found[0]}.{found[1]}", expected=f"{MAJOR}", do="use the ett that wrote it"
        )
    if name != publication_name(fields["number"]):
        raise CorruptState(f"{name} holds publication {fields['number']}", do="publish again")
    if fields["base"] is not None and not (is_count(fields["base"]) and fields["base"] < fields["number"]):
        raise ValueError(f"it follows publication {fields['base']}")
    fields["lineage"] = Lineage(**fields["lineage"])
    fields["tables"] = tuple(PublishedTable.from_json(table) for table in fields["tables"])
    fields["dense"] = PublishedDense.from_json(fields["dense"])
    return Publication(**fields)


def publication_name(number: int) -> str:
    return f"{FOLDER}/{number:016d}.json"


def published_file(entry: Json) -> StoredFile:
    """Return the file of an entry. Raises: LookupError, TypeError, ValueError: it is none of an artefact's."""
    return StoredFile.from_json(entry, _PLACE)


def artefact_folder(key: str) -> str:
    return f"{ARTEFACTS}/{key}"
