"""A table of a commit as files for serving: its live rows in parts of bounded size, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from ett.checkpoint.artefact_folder import ArtefactFolder
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import TableEntry
from ett.checkpoint.digest import ColumnGroup, TableDigest, combine
from ett.checkpoint.live_parts import LivePart, LiveTable, PartRows, by_id, live_parts
from ett.checkpoint.live_rows import LiveRows, live_rows
from ett.checkpoint.publication import PartFile, PublishedTable
from ett.checkpoint.publish_delta import DeltaBase, gone_ids
from ett.checkpoint.publish_settings import PublishSettings, last_updates
from ett.checkpoint.quantised_rows import bits_of, first_unfit, quantise, stored_row_bytes
from ett.checkpoint.safetensors_file import Layout, TensorSpec, layout_of
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import read_rows
from ett.checkpoint.table_segments import Bytes, Ids, TableFile
from ett.checkpoint.worker_threads import in_threads
from ett.errors import ConfigError, CorruptState

THREADS = 2  # each holds the rows of a part, a segment's at most, and a piece of what it reads
PIECE_BYTES = 2 << 20  # of rows on their way into a file


@dataclass(frozen=True, slots=True)
class TableForm:
    """How rows are written: as they are, or in fewer bits under another name."""

    table: TableEntry
    bits: int

    @classmethod
    def of(cls, table: TableEntry, settings: PublishSettings) -> TableForm:
        return cls(table, bits_of(table.spec.groups[0], settings.bits))

    @property
    def group(self) -> ColumnGroup:
        weight = self.table.spec.groups[0]
        if not self.bits:
            return weight
        return ColumnGroup(f"weight.q{self.bits}", "uint8", stored_row_bytes(weight, self.bits))

    @property
    def names(self) -> tuple[str, str]:
        """Return what the ids and the rows are called in a file."""
        name = self.table.spec.name
        return f"{name}.ids", f"{name}.q{self.bits}" if self.bits else name

    def layout(self, num_rows: int) -> Layout:
        ids, rows = self.names
        tensors = [
            TensorSpec(ids, "int64", (num_rows,)),
            TensorSpec(rows, self.group.dtype, (num_rows, self.group.width)),
        ]
        return layout_of(tensors, {"format": "pt", "table": self.table.spec.name, "weight_bits": str(self.bits)})

    def stored(self, ids: Ids, weights: Bytes) -> Bytes:
        """Return weights, uint8 [N, row_bytes], as they are written. Raises: ConfigError: they cannot be quantised."""
        if not self.bits:
            return weights
        unfit = first_unfit(weights)
        if unfit is not None:
            raise ConfigError(
                f"table {self.table.spec.name}: the weights of id {ids[unfit]} are not all finite",
                expected="finite numbers: they are to be quantised",
                do="find out where they come from; without --quantise they are published as they are",
            )
        return quantise(weights, self.bits)


def publish_table(
    store: Store, table: TableEntry, settings: PublishSettings, into: ArtefactFolder, base: DeltaBase | None = None
) -> PublishedTable:
    """Write the rows of a table that are not pruned, without optimizer states, and return what was written.

    Args: base: what only changes are written since.
    Raises: CorruptState: rows or digest are not as committed. ConfigError: a row cannot be quantised.
    """
    files = sorted(table.files, key=by_id)
    form, buffers = TableForm.of(table, settings), BufferPool()
    with live_rows(store, table.spec, files) as live:
        newest = _newest_update(store, table, files, live, buffers) if settings.pruning.max_age_updates else 0
        writer = _Writer(LiveTable(store, table.spec, files, live, buffers), form, settings, newest, into)
        since = -1 if base is None else base.newest.lineage.state_seq
        counts = [count if file.seq > since else 0 for file, count in zip(files, live.counts, strict=True)]
        parts = in_threads(live_parts(counts, table.spec.segment_rows), writer.make, THREADS)
        num_live, gone = live.num_rows, () if base is None else writer.make_gone(base, since)
    digest = combine([part.source_digest for part in parts]) if base is None else None
    if num_live != table.num_rows or (digest and table.digest not in (None, digest)):
        raise CorruptState(
            f"table {table.spec.name} has {num_live} rows with digest {digest}",
            expected=f"{table.num_rows} with {table.digest or 'any'}, as were committed",
        )
    num_rows = sum(part.num_rows for part in parts) if base is None else num_live
    return PublishedTable(
        kind="full" if base is None else "delta",
        table_id=table.spec.table_id,
        name=table.spec.name,
        dim=table.spec.dim,
        dtype=table.spec.groups[0].dtype,
        weight_bits=form.bits,
        num_rows=num_rows,
        num_pruned=num_live - num_rows,
        source_digest=digest,
        files=tuple(part for part in parts if part.num_rows),
        gone=gone,
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    table: LiveTable
    form: TableForm
    settings: PublishSettings
    newest: int
    into: ArtefactFolder

    def make(self, part: LivePart) -> PartFile:
        name = f"{self.table.spec.table_id}-{part.number:05d}.safetensors"
        stored, facts = self.into.make(name, lambda: self._write(name, part))
        return PartFile(stored=stored, **facts)

    def _write(self, name: str, part: LivePart) -> tuple[StoredFile, Json]:
        with self.table.read(part) as found:
            rows = self._kept(found)
            digest = TableDigest(self.table.spec.name, [self.form.group])

            def pieces() -> Iterator[Bytes]:
                digest.value = 0
                yield np.frombuffer(self.form.layout(len(rows.ids)).head, np.uint8)
                yield rows.ids.view(np.uint8)
                for ids, weights in _weights(self.table.spec.groups[0], rows):
                    stored = self.form.stored(ids, weights)
                    digest.add(ids, [stored])
                    yield stored.reshape(-1)

            stored = self.into.write(name, pieces)
            source = {"source_rows": part.num_rows, "source_digest": rows.digest}
            return stored, {**_facts_of_ids(rows.ids), "digest": digest.hex, **source}

    def make_gone(self, base: DeltaBase, since: int) -> tuple[PartFile, ...]:
        """Write the ids that are there no more."""
        name, tensor = self.table.spec.table_id, f"{self.table.spec.name}.gone"
        found = gone_ids(self.table, since, self.into.store, base.layers(self.table.spec.name))

        def write(number: int, ids: Ids) -> PartFile:
            head = layout_of([TensorSpec(tensor, "int64", (len(ids),))], {"format": "pt"}).head

            def pieces() -> Iterator[Bytes]:
                yield np.frombuffer(head, np.uint8)
                yield ids.view(np.uint8)

            file = f"{name}-gone-{number:05d}.safetensors"
            facts = {**_facts_of_ids(ids), "digest": "", "source_rows": 0, "source_digest": ""}
            stored, facts = self.into.make(file, lambda: (self.into.write(file, pieces), facts))
            return PartFile(stored=stored, **facts)

        return tuple(write(number, ids) for number, ids in enumerate(found))

    def _kept(self, rows: PartRows) -> PartRows:
        if not self.settings.pruning:
            return rows
        kept = self.settings.pruning.kept(self.form.table, rows.columns, self.newest)[rows.order]
        return PartRows(rows.ids[kept], rows.order[kept], rows.columns, rows.digest)


def _facts_of_ids(ids: Ids) -> Json:
    ends = {"min_id": int(ids[0]), "max_id": int(ids[-1])} if len(ids) else {"min_id": 0, "max_id": 0}
    return {"num_rows": len(ids), **ends, "ids_xxh3_128": xxhash.xxh3_128_hexdigest(ids.data)}


def _weights(group: ColumnGroup, rows: PartRows) -> Iterator[tuple[Ids, Bytes]]:
    """Yield rows of a part, a piece at a time, in memory that is used again."""
    at_once = max(1, PIECE_BYTES // group.row_bytes)
    buffer = np.empty((min(at_once, len(rows.ids)), group.row_bytes), np.uint8)
    for start in range(0, len(rows.ids), at_once):
        ids = rows.ids[start : start + at_once]
        rows.take(0, start, buffer[: len(ids)])
        yield ids, buffer[: len(ids)]


def _newest_update(
    store: Store, table: TableEntry, files: Sequence[TableFile], live: LiveRows, buffers: BufferPool
) -> int:
    """Return when the table's newest row was updated: a pass over the rows of its own."""

    def newest(number: int) -> int:
        found = read_rows(store, table.spec, files[number], live.wanted(number), buffers)
        return max((last_updates(table, rows.columns) for rows in found), default=0)

    return max(in_threads(range(len(files)), newest, THREADS), default=0)
