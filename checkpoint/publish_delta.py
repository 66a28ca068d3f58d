"""What of a commit changed since a publication: rows in files that are newer, and ids that are there no more.

A row whose newest version stands in a file of the published state or of an earlier one is what was published: files
of a chain are never rewritten, and a life of a job appends to one line. Which ids have gone is found by comparing ids:
a row that came and went between two bases may leave no tombstone behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_log import CommitLog, states_of_history
from ett.checkpoint.id_sets import IdSets, id_sets
from ett.checkpoint.incarnation import life_of
from ett.checkpoint.live_parts import LiveTable
from ett.checkpoint.publication import Publication, PublishedTable, of_publication
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.publish_settings import PublishSettings
from ett.checkpoint.published_rows import chain_of, layers_of, part_ids
from ett.checkpoint.segment_reader import open_segment
from ett.checkpoint.segment_rows import checked_blocks, read_ids
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import IDS, Ids
from ett.errors import Conflict, CorruptState

MANY_IDS = 1 << 20  # about, of a file of ids that have gone as well


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaBase:
    """What a delta follows. chain: publications, oldest first, of which the first is full."""

    chain: tuple[Publication, ...]

    @property
    def newest(self) -> Publication:
        return self.chain[-1]

    def layers(self, table: str) -> list[PublishedTable]:
        """Return what a reader applies, in order, to have a table as it was published last."""
        return layers_of(self.chain, table)

    def reason_for_all(self, table: TableEntry) -> str | None:
        """Return why all rows of a table are published; None: only what changed is."""
        since = self.newest.lineage.state_seq
        if any(file.identity.kind == "base" and file.seq > since for file in table.files):
            return f"table {table.spec.name} has a new base since publication {self.newest.number}"
        (last,) = (found for found in self.newest.tables if found.name == table.spec.name)
        if (last.table_id, last.dim, last.dtype) != (table.spec.table_id, table.spec.dim, table.spec.groups[0].dtype):
            return f"table {table.spec.name} is of another form than in publication {self.newest.number}"
        return None


def find_base(store: Store, commit: Commit, to: Store, settings: PublishSettings) -> DeltaBase | str:
    """Return the newest publication that a delta may follow, or why there is none."""
    if settings.pruning:
        return "a row may be pruned though it has not changed"
    log = PublicationLog(to)
    names = {table.spec.name for table in settings.chosen(commit)}
    known = log.read_all()[0]
    same = [old for old in known if old.settings == settings.as_json() and {t.name for t in old.tables} == names]
    if not same:
        return "nothing is published there of these tables with these settings"
    newest = same[0]
    reason = _reason_of_lineage(store, commit, newest)
    if reason is not None:
        return f"publication {newest.number} is of step {newest.lineage.step}, {reason}"
    try:
        return DeltaBase(chain=chain_of(log, newest))
    except CorruptState as err:
        return err.fact


def _reason_of_lineage(store: Store, commit: Commit, last: Publication) -> str | None:
    """Return why a commit may not be a continuation of what was published; None: it is one."""
    lineage = last.lineage
    if lineage.job != commit.job:
        return f"and of job {lineage.job}"
    if lineage.state_seq >= commit.files_seq:
        return "and not older than the commit"
    if lineage.life == life_of(commit):
        return None  # one life has one line
    if lineage.ckpt_uuid not in states_of_history(CommitLog(store).read_all()[0]):
        return "whose commit is not there any more, or was left behind by a rollback"
    return None


def gone_ids(table: LiveTable, since: int, to: Store, layers: list[PublishedTable]) -> Iterator[Ids]:
    """Yield the ids that were published and are not live, ascending, some at a time.

    Args: since: rows in files of a higher seq are published again. layers: what was published before.
    Raises: Conflict: a row is in neither. DamagedPublication: a published file is.
    """
    known = [(layer.files, layer.gone) for layer in layers]
    num_ids = table.live.num_rows + sum(file.num_rows for files, gone in known for file in (*files, *gone))
    with id_sets(num_ids) as sets:
        for number, (files, gone) in enumerate(known):
            for name, parts in ((f"rows {number}", files), (f"gone {number}", gone)):
                with of_publication():
                    for ids in _many_at_a_time(ids for part in parts for ids in part_ids(to, part)):
                        sets.add(name, ids)
        for name, is_new in (("same", False), ("changed", True)):
            numbers = [number for number, file in enumerate(table.files) if (file.seq > since) == is_new]
            for ids in _many_at_a_time(ids for number in numbers for ids in _live_ids(table, number)):
                sets.add(name, ids)
        yield from _many_at_a_time(
            _gone(sets, bucket, len(known), table.spec.name) for bucket in range(sets.num_buckets)
        )


def _gone(sets: IdSets, bucket: int, num_layers: int, name: str) -> Ids:
    before = np.empty(0, np.int64)
    for number in range(num_layers):
        before = np.setdiff1d(before, sets.of(f"gone {number}", bucket), assume_unique=True)
        before = np.union1d(before, sets.of(f"rows {number}", bucket))
    same = sets.of("same", bucket)
    stray = np.setdiff1d(same, before, assume_unique=True)
    if len(stray):
        raise Conflict(
            f"table {name}: id {stray[0]} has not changed since the last publication, and is not in it",
            expected="a commit that continues the published one",
            do="publish without --delta",
        )
    return np.setdiff1d(before, np.union1d(same, sets.of("changed", bucket)), assume_unique=True)


def _many_at_a_time(parts: Iterator[Ids]) -> Iterator[Ids]:
    waiting: list[Ids] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= MANY_IDS:
            yield np.sort(np.concatenate(waiting))
            waiting = []
    if any(map(len, waiting)):
        yield np.sort(np.concatenate(waiting))


def _live_ids(table: LiveTable, number: int) -> Iterator[Ids]:
    file, wanted = table.files[number], table.live.wanted(number)
    with open_segment(table.store, file.stored, file.identity) as segment:
        blocks = checked_blocks(segment, table.spec, file)[0]
        for at in range(len(blocks)):
            (ids,) = read_ids(segment, blocks[at : at + 1], IDS)
            yield ids[wanted(ids)]
