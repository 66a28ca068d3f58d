"""Restore the newest commit that verifies, on any number of ranks; say so when it is not the newest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit, commit_name, parse_commit
from ett.checkpoint.commit_choice import Planned, choose
from ett.checkpoint.dense_reader import read_dense
from ett.checkpoint.digest import combine
from ett.checkpoint.ranks import gather_or_raise, on_rank_zero
from ett.checkpoint.read_plan import reads_at_once
from ett.checkpoint.restore_checks import read_fragment
from ett.checkpoint.rng_state import set_rng_state
from ett.checkpoint.save import SavePlace
from ett.checkpoint.table import is_copy
from ett.checkpoint.table_reader import TableToRead, read_tables
from ett.checkpoint.training_state import TakesState, TrainingState
from ett.checkpoint.worker_threads import beside
from ett.errors import CorruptState

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    commit: Commit
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
        bad = load_commit(place, state, commit)
        if bad is None:
            newest_bad = max(rejected, default=0)
            return Restored(commit=commit, fallback_from=newest_bad if newest_bad > commit.seq else None)
        rejected[commit.seq] = bad
        log.warning("commit %d of step %d does not verify: %s", commit.seq, commit.step, bad)


def load_commit(place: SavePlace, state: TakesState, commit: Commit) -> str | None:
    """Load a commit on every rank; return why it does not verify, the same on every rank, or None when it did."""
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
        rows, digest = _loaded([result["tables"][number] for result in results])
        if rows != table.num_rows or table.digest not in (None, digest):
            return (
                f"table {table.spec.name}: {rows} rows with digest {digest} were loaded, "
                f"{table.num_rows} with {table.digest or 'no digest'} committed"
            )
    gather_or_raise(place.ranks, lambda: _apply(place, state, commit, *dense))
    return None


@contextmanager
def _dense_beside(place: SavePlace, state: TakesState, commit: Commit) -> Iterator[Callable[[], Any]]:
    """Read the dense state in a thread, beside what the body reads; before it, where one read is to be under way."""
    assert commit.dense is not None
    like, reads = state.sharded_like(), reads_at_once(place.store, place.reads)
    with beside(partial(read_dense, place.store, commit.dense, like, reads)) as coming:
        if reads == 1:
            coming()
        yield coming


def _loaded(by_rank: list[Json]) -> tuple[int, str]:
    """Return how many rows all ranks have loaded, and their digest; those of a rank whose copies are not the same."""
    own = [one for one in by_rank if not one[2]]
    whole = sum(num_rows for num_rows, _, _ in own), combine([digest for _, digest, _ in own])
    copies = [(num_rows, digest) for num_rows, digest, is_copied in by_rank if is_copied]
    return next((copied for copied in copies if copied != whole), whole)


def _load_tables(place: SavePlace, state: TakesState, commit: Commit) -> Json:
    """Load this rank's rows of every table; return how many they are, their digest, whether another rank has them."""
    tables = []
    for table in commit.tables:
        state.shards[table.spec.name].begin_import(sum(file.num_rows for file in table.files))
        tables.append(
            TableToRead(
                spec=table.spec,
                files=table.files,
                owned=partial(state.owned, table.spec),
                take=partial(state.import_rows, table.spec),
            )
        )
    found = read_tables(place.store, tables, place.buffers, place.reads)
    for table in commit.tables:
        state.shards[table.spec.name].end_import()
    return [[*one, is_copy(state.shards[table.spec.name])] for one, table in zip(found, commit.tables, strict=True)]


def _apply(place: SavePlace, state: TakesState, commit: Commit, tensors: Any, tree: Any) -> Json:
    state.load_dense(tensors, tree)
    if place.ranks.world_size == commit.world_size:
        set_rng_state(read_fragment(place.store, commit.fragments[place.ranks.rank])["rng"])
    else:
        log.info(
            "the world size is now %d, was %d: random states start anew", place.ranks.world_size, commit.world_size
        )
    return None
