"""Restore the newest commit that verifies, on any number of ranks; say so when it is not the newest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any, Literal

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit, TableEntry, commit_name, parse_commit
from ett.checkpoint.commit_choice import Planned, choose
from ett.checkpoint.dense_reader import read_dense
from ett.checkpoint.digest import combine
from ett.checkpoint.kept_rows import KeepsRows, Kept, kept_rows
from ett.checkpoint.policy.table_tracker import AsOf
from ett.checkpoint.ranks import gather_or_raise, on_rank_zero
from ett.checkpoint.read_plan import reads_at_once
from ett.checkpoint.restore_checks import read_fragment
from ett.checkpoint.rng_state import set_rng_state
from ett.checkpoint.save import SavePlace
from ett.checkpoint.table import is_copy
from ett.checkpoint.table_reader import ReadTable, TableToRead, read_tables
from ett.checkpoint.training_state import TakesState, TrainingState
from ett.checkpoint.worker_threads import beside
from ett.errors import CorruptState

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What of a commit's tables was read, by all ranks, and what had stayed in memory.

    own: what this rank has of each table. not_kept: of tables with rows in memory that were read whole, each once.
    """

    own: dict[str, AsOf]
    read_bytes: int
    kept_bytes: int
    not_kept: tuple[str, ...]

    @property
    def scope(self) -> Literal["full", "partial"]:
        return "partial" if self.kept_bytes else "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    commit: Commit
    loaded: Loaded
    fallback_from: int | None  # the newest commit that did not verify, if it was newer than this one


def restore_newest(
    place: SavePlace, state: TrainingState, step: int | None = None, planned: Planned | None = None
) -> Restored | None:
    """Load the newest commit that verifies, or exactly the one of `step`; None is a fresh start. Collective.

    Args: planned: rank 0's choice, made ahead; one that is out of date, or does not verify, is made anew.
    Raises, on every rank alike:
        RestoreFailed: there are commits and none is good, or the model does not fit; nothing may train on this state.
        NoCheckpoint, NotFound: no commit at all, or none of `step`.
    """
    rejected: dict[int, str] = {}
    while True:
        choice = on_rank_zero(place.ranks, lambda: choose(place.store, rejected, step, planned, reads=place.reads))
        if choice["seq"] is None:
            return None
        rejected.update({int(seq): why for seq, why in choice["rejected"].items()})
        commit = parse_commit(choice["manifest"].encode(), commit_name(choice["seq"]))
        loaded = load_commit(place, state, commit)
        if isinstance(loaded, Loaded):
            newest_bad = max(rejected, default=0)
            fallback_from = newest_bad if newest_bad > commit.seq else None
            return Restored(commit=commit, loaded=loaded, fallback_from=fallback_from)
        rejected[commit.seq] = loaded
        log.warning("commit %d of step %d does not verify: %s", commit.seq, commit.step, loaded)


def load_commit(place: SavePlace, state: TakesState, commit: Commit) -> Loaded | str:
    """Load a commit on every rank, or return why it does not verify, the same on every rank.

    Rows that are in memory as the commit has them are not read (`kept_rows.py`).
    """
    dense: list[Any] = []

    def read() -> Json:
        state.expect_tables({table.spec: table.num_rows for table in commit.tables})
        try:
            with _dense_beside(place, state, commit) as coming:
                tables = _load_tables(place, state, commit)
                dense.extend(coming())
            return {"tables": tables}
        except CorruptState as err:
            return {"corrupt": err.fact}

    results = gather_or_raise(place.ranks, read)
    bad = [f"rank {rank}: {result['corrupt']}" for rank, result in enumerate(results) if "corrupt" in result]
    if bad:
        return bad[0]
    for number, table in enumerate(commit.tables):
        rows, digest = _sum_of([result["tables"][number] for result in results])
        if rows != table.num_rows or (table.digest is not None and digest not in (None, table.digest)):
            return (
                f"table {table.spec.name}: {rows} rows with digest {digest} were loaded, "
                f"{table.num_rows} with {table.digest or 'no digest'} committed"
            )
    gather_or_raise(place.ranks, lambda: _apply(place, state, commit, *dense))
    return _loaded(results, commit, place.ranks.rank)


@contextmanager
def _dense_beside(place: SavePlace, state: TakesState, commit: Commit) -> Iterator[Callable[[], Any]]:
    """Read the dense state in a thread, beside what the body reads; before it, where one read is to be under way."""
    assert commit.dense is not None
    like, reads, broken_off = state.sharded_like(), reads_at_once(place.store, place.reads), Event()
    work = partial(read_dense, place.store, commit.dense, like, reads, broken_off.is_set)
    with beside(work, broken_off.set) as coming:
        if reads == 1:
            coming()
        yield coming


def _sum_of(by_rank: list[Json]) -> tuple[int, str | None]:
    """Return how many rows of a table all ranks have, and their digest; those of a rank whose copies are not the same.

    None: a rank has kept rows whose digest nobody knows.
    """
    own = [one for one in by_rank if not one["is_copy"]]
    digests = [one["digest"] for one in own]
    whole = sum(one["rows"] for one in own), None if None in digests else combine(digests)
    copies = [(one["rows"], one["digest"]) for one in by_rank if one["is_copy"]]
    return next((copied for copied in copies if copied != whole), whole)


def _loaded(results: list[Json], commit: Commit, rank: int) -> Loaded:
    """Args: results: of each rank, of each table."""
    own = zip(commit.tables, results[rank]["tables"], strict=True)
    every = [one for result in results for one in result["tables"]]
    not_kept = dict.fromkeys(
        f"{table.spec.name}: {one['why']}"
        for result in results
        for table, one in zip(commit.tables, result["tables"], strict=True)
        if one["why"]
    )
    return Loaded(
        own={table.spec.name: AsOf(commit.ckpt_uuid, one["rows"], one["digest"]) for table, one in own},
        read_bytes=sum(one["read_bytes"] for one in every),
        kept_bytes=sum(one["kept_bytes"] for one in every),
        not_kept=tuple(not_kept),
    )


def _load_tables(place: SavePlace, state: TakesState, commit: Commit) -> Json:
    """Load this rank's rows of every table; return what they are, see `_table_loaded`."""
    found = [kept_rows(state.shards[table.spec.name], table, commit) for table in commit.tables]
    read = _read(place, state, commit.tables, found)
    anew = [n for n, one in enumerate(found) if isinstance(one, Kept) and _has_lost_rows(state, commit.tables[n], one)]
    for number in anew:
        found[number] = "rows were missing among those that had stayed"
    for number, one in zip(anew, _read(place, state, [commit.tables[n] for n in anew], [""] * len(anew)), strict=True):
        read[number] = replace(one, num_bytes=one.num_bytes + read[number].num_bytes)
    return [_table_loaded(state, *parts) for parts in zip(commit.tables, found, read, strict=True)]


def _read(
    place: SavePlace, state: TakesState, tables: Sequence[TableEntry], found: Sequence[Kept | str]
) -> list[ReadTable]:
    """Read of each table what is not kept of it."""
    wanted = []
    for table, kept in zip(tables, found, strict=True):
        shard, owned = state.shards[table.spec.name], partial(state.owned, table.spec)
        if isinstance(kept, Kept) and isinstance(shard, KeepsRows):
            shard.begin_rollback(kept.changed)
            owned = partial(kept.wanted, owned)
        else:
            shard.begin_import(sum(file.num_rows for file in table.files))
        take = partial(state.import_rows, table.spec)
        wanted.append(TableToRead(spec=table.spec, files=table.files, owned=owned, take=take))
    read = read_tables(place.store, wanted, place.buffers, place.reads)
    for table in tables:
        state.shards[table.spec.name].end_import()
    return read


def _has_lost_rows(state: TakesState, table: TableEntry, kept: Kept) -> bool:
    shard = state.shards[table.spec.name]
    return isinstance(shard, KeepsRows) and shard.num_tracked_rows() != kept.num_rows


def _table_loaded(state: TakesState, table: TableEntry, kept: Kept | str, read: ReadTable) -> Json:
    """Return how many rows this rank has of a table, their digest, whether another rank has them, and the bytes of
    rows that were read for it and that had stayed; and why none have.
    """
    own: Json = {"rows": read.num_rows, "digest": read.digest, "kept_bytes": 0, "why": kept}
    if isinstance(kept, Kept):
        num_kept = kept.num_rows - read.num_rows
        own = {"rows": kept.num_rows, "digest": kept.digest, "kept_bytes": num_kept * table.spec.row_bytes, "why": ""}
    return own | {"is_copy": is_copy(state.shards[table.spec.name]), "read_bytes": read.num_bytes}


def _apply(place: SavePlace, state: TakesState, commit: Commit, tensors: Any, tree: Any) -> Json:
    state.load_dense(tensors, tree)
    if place.ranks.world_size == commit.world_size:
        set_rng_state(read_fragment(place.store, commit.fragments[place.ranks.rank])["rng"])
    else:
        log.info(
            "the world size is now %d, was %d: random states start anew", place.ranks.world_size, commit.world_size
        )
    return None
