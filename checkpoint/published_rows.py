"""The rows of a publication as a server has them: a full one, or one with deltas after it, verified and applied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import xxhash

from ett.checkpoint.publication import PartFile, Publication, PublishedTable
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.restore_checks import altered, missing, read_whole
from ett.checkpoint.store import ObjectReader, Store
from ett.checkpoint.table_segments import Bytes, Ids
from ett.errors import CorruptState

_IDS_AT_ONCE = 1 << 18


def chain_of(log: PublicationLog, publication: Publication) -> tuple[Publication, ...]:
    """Return what a publication is made of, oldest first: a full one, and the deltas after it.

    Raises: CorruptState: one is missing or damaged, or another has its number.
    """
    chain = [publication]
    while chain[-1].base is not None:
        base = log.read(chain[-1].base)
        if base.key != chain[-1].base_key:
            raise CorruptState(f"publication {base.number} is not the one that {chain[-1].number} follows")
        chain.append(base)
    return tuple(reversed(chain))


def layers_of(chain: Sequence[Publication], table: str) -> list[PublishedTable]:
    """Return what of a chain makes a table, in the order in which it is applied: all rows, then changes."""
    layers = [found for publication in chain for found in publication.tables if found.name == table]
    first = max((number for number, layer in enumerate(layers) if layer.kind == "full"), default=0)
    return layers[first:]


def table_rows(store: Store, layers: Sequence[PublishedTable]) -> tuple[Ids, Bytes]:
    """Return a table in memory: ids int64 [N], ascending, and rows uint8 [N, bytes] as they are in the files.

    Raises: CorruptState: a file is missing or altered, or there are other rows than were published.
    """
    ids, rows = np.empty(0, np.int64), None
    for layer in layers:
        parts = [_part(store, file) for file in layer.files]
        gone = [found for file in layer.gone for found in part_ids(store, file)]
        new = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
        stays = ~np.isin(ids, np.concatenate([new, *gone]))
        ids = np.concatenate([ids[stays], new])
        rows = (
            np.concatenate([*([] if rows is None else [rows[stays]]), *(part[1] for part in parts)])
            if parts
            else (None if rows is None else rows[stays])
        )
        if len(ids) != layer.num_rows:
            raise CorruptState(f"table {layer.name} has {len(ids)} rows", expected=f"{layer.num_rows}, as published")
    order = np.argsort(ids, kind="stable")
    return ids[order], np.empty((0, 0), np.uint8) if rows is None else rows[order]


def part_ids(store: Store, part: PartFile) -> Iterator[Ids]:
    """Yield the ids of a part, some at a time; only these are read. Raises: CorruptState: missing or altered."""
    hasher = xxhash.xxh3_128()
    try:
        with store.open(part.stored.path) as reader:
            if reader.size != part.stored.bytes:
                raise altered(part.stored)
            at = 8 + int.from_bytes(_read(reader, 0, 8), "little")
            if at + 8 * part.num_rows > part.stored.bytes:
                raise altered(part.stored)
            for start in range(0, part.num_rows, _IDS_AT_ONCE):
                num_bytes = 8 * min(_IDS_AT_ONCE, part.num_rows - start)
                data = _read(reader, at + 8 * start, num_bytes)
                if len(data) != num_bytes:
                    raise altered(part.stored)
                hasher.update(data)
                yield np.frombuffer(data, np.int64)
    except FileNotFoundError as err:
        raise missing(part.stored) from err
    if hasher.hexdigest() != part.ids_xxh3_128:
        raise altered(part.stored)


def _read(reader: ObjectReader, offset: int, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    return data[: reader.read_into(offset, memoryview(data))]


def _part(store: Store, part: PartFile) -> tuple[Ids, Bytes]:
    data = np.frombuffer(read_whole(store, part.stored), np.uint8)
    start = 8 + int(data[:8].view("<u8")[0])
    end = start + 8 * part.num_rows
    return data[start:end].view(np.int64), data[end:].reshape(part.num_rows, -1)
