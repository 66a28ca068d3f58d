"""A serving artefact of one commit, made without the job: planned, written file by file, and there with its manifest.

Whatever ends a publisher, the next one of the same state and settings goes on with the files that are whole, and finds
the artefact made where it was.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from ett.checkpoint.artefact_folder import ArtefactFolder, check_whole
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.canonical_json import unseal
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.commit_log import FORMAT_NAME, CommitLog, create_format
from ett.checkpoint.export import first_whole
from ett.checkpoint.incarnation import created_now, life_of, writer_version
from ett.checkpoint.pins import leased
from ett.checkpoint.progress import Watch, unwatched
from ett.checkpoint.publication import (
    ARTEFACTS,
    FORMAT,
    MAJOR,
    MINOR,
    DamagedPublication,
    Kind,
    Lineage,
    Publication,
    artefact_folder,
    of_publication,
)
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.publish_delta import DeltaBase, find_base
from ett.checkpoint.publish_settings import PublishSettings
from ett.checkpoint.published_dense import publish_dense
from ett.checkpoint.published_rows import chain_of
from ett.checkpoint.published_table import TableForm, publish_table
from ett.checkpoint.restore_checks import check_size
from ett.checkpoint.store import Store
from ett.clock import Clock, SystemClock
from ett.errors import ConfigError, Conflict, CorruptState, NoCheckpoint, NotFound
from ett.store_uri import shown_uri

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishPlan:
    """What would be published. base: what a delta follows, where one was asked for and is possible. reasons: why all
    rows of some tables are published where a delta was asked for. done: the publication of it that is there already.
    num_parts: files that an earlier attempt has left, of which those that are whole are used.
    """

    commit: Commit
    settings: PublishSettings
    key: str
    base: DeltaBase | None
    reasons: tuple[str, ...]
    done: Publication | None
    num_parts: int

    @property
    def kind(self) -> Kind:
        return "full" if self.base is None else "delta"

    def base_of(self, table: TableEntry) -> DeltaBase | None:
        """Return what only changes of a table are published since; None: all rows are."""
        return self.base if self.base is not None and self.base.reason_for_all(table) is None else None

    @property
    def num_bytes(self) -> int:
        """Return about how many bytes the tables' files will have, but for what is pruned and for deltas."""
        tables = [table for table in self.settings.chosen(self.commit) if self.base_of(table) is None]
        forms = [TableForm.of(table, self.settings) for table in tables]
        return sum(form.table.num_rows * (8 + form.group.row_bytes) for form in forms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """was_done: nothing was written. num_reused, num_written: files that an earlier attempt left whole; and others."""

    publication: Publication
    was_done: bool
    reasons: tuple[str, ...] = ()  # of the plan
    num_reused: int = 0
    num_written: int = 0
    fallback_from: int | None = None  # the newest commit, if that did not verify


def named_commit(store: Store, step: int | None, seq: int | None) -> Commit:
    """Return the commit `seq`, or that of `step`, or the newest. Raises: as `find_commit`; NotFound: no `seq`."""
    if seq is None:
        return find_commit(store, step)[0]
    commits = CommitLog(store)
    if seq not in commits.seqs():
        raise NotFound(f"there is no commit {seq} under {store.uri}", do="`ett checkpoint ls` shows which there are")
    commit = commits.read(seq)
    if commit.is_fresh:
        raise NoCheckpoint(f"commit {seq} under {store.uri} is a fresh start: it has nothing to publish")
    return commit


def plan_publish(
    store: Store, commit: Commit, to: Store, settings: PublishSettings, *, delta: bool = False
) -> PublishPlan:
    """Say what publishing a commit would do; writes nothing. Raises: as `PublishSettings.chosen`."""
    tables = settings.chosen(commit)
    log = PublicationLog(to)
    done = log.of_state(commit.ckpt_uuid, settings.as_json()) if delta else log.of_key(settings.key(commit))
    base: DeltaBase | None = None
    reasons: list[str] = []
    if delta and done is None:
        found = find_base(store, commit, to, settings)
        if isinstance(found, str):
            reasons = [found]
        else:
            reasons = [reason for table in tables if (reason := found.reason_for_all(table))]
            base = found if len(reasons) < len(tables) else None
    elif done is not None and done.base is not None:
        with of_publication():
            base = DeltaBase(chain=chain_of(log, log.read(done.base)))
    key = settings.key(commit, base.newest.key if base else None)
    records = [name for name in to.list(artefact_folder(key)) if name.endswith(".json")]
    return PublishPlan(
        commit=commit,
        settings=settings,
        key=key,
        base=base,
        reasons=tuple(reasons),
        done=done,
        num_parts=len(records),
    )


def publish(
    store: Store,
    commit: Commit,
    to: Store,
    settings: PublishSettings,
    *,
    delta: bool = False,
    verify: bool = False,
    watch: Watch = unwatched,
) -> Published:
    """Publish one commit of `store` under `to`, unless that is done and its files are there.

    Args:
        delta: only what changed since the newest publication there with these settings, table by table, where the
            commit's files still tell it.
        verify: read the files of what is done, and make anew what is damaged.
    Raises: CorruptState: the commit is damaged. NotFound, ConfigError: the settings do not fit it; nothing was written.
        ConfigError: `to` lets a second writer replace what exists. AccessDenied, Unreachable: a store.
    """
    plan = plan_publish(store, commit, to, settings, delta=delta)
    if plan.done is not None and not verify and _has_files(to, plan.done):
        return Published(publication=plan.done, was_done=True)
    _prepare(to)
    into = ArtefactFolder(to, plan.key)
    with (
        leased(store, commit, f"publish to {shown_uri(to.uri)}"),
        watch(store, "publishing", commit.num_bytes) as reading,
    ):
        made = _publication(reading, plan, into, SystemClock())
    taken = PublicationLog(to).append(made, lambda: _check_files(to, made))
    if taken.stored_files() != made.stored_files():
        raise Conflict(
            f"publication {taken.number} has other files than its commit gives now: another version of ett made it",
            expected=f"the files of ett {taken.publisher_version}",
            do="publish to another folder",
        )
    was_done = plan.done is not None and not into.num_written
    counts = {"num_reused": into.num_reused, "num_written": into.num_written}
    return Published(publication=taken, was_done=was_done, reasons=plan.reasons, **counts)


def publish_newest_whole(
    store: Store,
    to: Store,
    settings: PublishSettings,
    *,
    delta: bool = False,
    verify: bool = False,
    watch: Watch = unwatched,
) -> Published:
    """Publish the newest commit that verifies. Raises: as `publish`; NoCheckpoint; RestoreFailed: none verifies."""

    def published(commit: Commit) -> Published | DamagedPublication:
        try:
            return publish(store, commit, to, settings, delta=delta, verify=verify, watch=watch)
        except DamagedPublication as err:  # no reason to go back to an older commit
            return err

    done, fallback_from = first_whole(store, None, published)
    if isinstance(done, DamagedPublication):
        raise done
    return replace(done, fallback_from=fallback_from)


def _has_files(to: Store, publication: Publication) -> bool:
    try:
        _check_files(to, publication)
    except CorruptState as err:
        log.warning("publication %d is made whole: %s", publication.number, err.fact)
        return False
    return True


def _check_files(to: Store, publication: Publication) -> None:
    with of_publication():
        for stored in publication.stored_files():
            check_size(to, stored)


def unfinished(to: Store) -> list[dict[str, Any]]:
    """Return what artefacts were begun under `to` and have no manifest, with what they hold."""
    published = {publication.key for publication in PublicationLog(to).read_all()[0]}
    found: dict[str, dict[str, Any]] = {}
    for entry in to.entries(ARTEFACTS):
        key = entry.name.split("/")[1]
        if key not in published:
            facts = found.setdefault(key, {"key": key, "files": 0, "bytes": 0})
            facts["files"] += not entry.name.endswith(".json")
            facts["bytes"] += entry.num_bytes
    return list(found.values())


def problems_of(to: Store, publication: Publication, *, verify: bool) -> list[str]:
    """Return what is wrong with a publication's files. Args: verify: read all of them, not only their sizes."""
    found, buffers = [], BufferPool()
    for stored in publication.stored_files():
        try:
            check_whole(to, stored, buffers) if verify else check_size(to, stored)
        except CorruptState as err:
            found.append(f"publication {publication.number}: {err.fact}")
    return found


def _publication(store: Store, plan: PublishPlan, into: ArtefactFolder, clock: Clock) -> Publication:
    commit = plan.commit
    assert commit.dense is not None
    return Publication(
        number=0,
        key=plan.key,
        base=None if plan.base is None else plan.base.newest.number,
        base_key=None if plan.base is None else plan.base.newest.key,
        created=created_now(clock),
        publisher_version=writer_version(),
        lineage=_lineage(store, commit),
        settings=plan.settings.as_json(),
        tables=tuple(
            publish_table(store, table, plan.settings, into, plan.base_of(table))
            for table in plan.settings.chosen(commit)
        ),
        dense=publish_dense(store, commit.dense, into),
    )


def _lineage(store: Store, commit: Commit) -> Lineage:
    return Lineage(
        job=commit.job,
        uri=shown_uri(store.uri),
        seq=commit.seq,
        state_seq=commit.files_seq,
        ckpt_uuid=commit.ckpt_uuid,
        epoch=commit.epoch,
        step=commit.step,
        cursor=commit.cursor,
        created=commit.created,
        writer_version=commit.writer_version,
        life=life_of(commit),
    )


def _prepare(to: Store) -> None:
    """Raises: ConfigError: the folder is one of checkpoints, or the store lets a second writer replace what exists."""
    create_format(to, FORMAT, (MAJOR, MINOR))
    fields = unseal(to.read(FORMAT_NAME))
    if fields is None or fields.get("format") != FORMAT or fields.get("major") != MAJOR:
        found = "damaged" if fields is None else f"of format {fields.get('format')} {fields.get('major')}"
        raise ConfigError(
            f"{shown_uri(to.uri)} is {found}",
            expected=f"a folder of publications alone: {FORMAT} {MAJOR}, or a new one",
            do="publish to another folder",
        )
