"""The numbered commits of one checkpoint folder: listed, read, appended create-only."""

from __future__ import annotations

import logging
import re
import uuid
from contextlib import suppress
from typing import Any

from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.commit import MAJOR, MINOR, Commit, commit_name, parse_commit
from ett.checkpoint.commit_cache import CommitCache
from ett.checkpoint.file_lists import split
from ett.checkpoint.restore_checks import read_fragment, read_whole
from ett.checkpoint.store import Store
from ett.errors import AccessDenied, ConfigError, Conflict, CorruptState, Unreachable

log = logging.getLogger(__name__)
FORMAT_NAME = "FORMAT.json"
LAST_SEQ = 10**16 - 1
_COMMIT = re.compile(r"commits/([0-9]{16})\.json")


class CommitLog:
    def __init__(self, store: Store, cache: CommitCache | None = None) -> None:
        """Args: cache: of whoever reads the folder, or appends to it, again and again."""
        self.store, self._cache = store, cache

    def seqs(self) -> list[int]:
        """Return the numbers of all commits, ascending, damaged ones included."""
        return sorted(int(found[1]) for name in self.store.list("commits") if (found := _COMMIT.fullmatch(name)))

    def read(self, seq: int) -> Commit:
        """Return a commit. Raises: CorruptState: missing or damaged; ConfigError: of a newer format."""
        name = commit_name(seq)
        try:
            return self._read(name)
        except FileNotFoundError as err:
            raise CorruptState(f"{name} is missing under {self.store.uri}") from err

    def read_all(self) -> tuple[dict[int, Commit], dict[int, CorruptState]]:
        """Return the readable commits and the errors of the damaged ones, both by number."""
        commits: dict[int, Commit] = {}
        damaged: dict[int, CorruptState] = {}
        for seq in self.seqs():
            # One that goes between the list and the read was collected by the job that owns the folder.
            with suppress(FileNotFoundError):
                try:
                    commits[seq] = self._read(commit_name(seq))
                except CorruptState as err:
                    self.store.size(commit_name(seq))  # its lists go after it
                    damaged[seq] = err
        if self._cache is not None:
            self._cache.keep_only({commit_name(seq) for seq in commits})
        return commits, damaged

    def _read(self, name: str) -> Commit:
        if self._cache is None:
            return read_commit(self.store, name)
        record = self.store.read(name)
        known = self._cache.get(name, record)
        if known is None:
            return self._cache.add(name, record, _parsed(self.store, name, record))
        for stored in known.lists:
            read_whole(self.store, stored)
        return known

    def append(self, commit: Commit) -> Commit:
        """Create a commit, the instant at which it exists, and return it as it is stored: with its lists of files.

        Raises: Conflict: the number is taken, or was: a newer incarnation of the job has opened the folder.
            CorruptState: there is no higher number.
        """
        name = commit_name(commit.seq)
        if commit.seq > LAST_SEQ:  # it would be listed by nobody
            raise CorruptState(
                f"a record {commit_name(LAST_SEQ)} under {self.store.uri} leaves no number for another commit",
                do="delete it: no job has made so many commits",
            )
        commit, record, lists = split(commit)
        for path, data in lists.items():
            with suppress(FileExistsError):  # named by its hash: of the commit that this one repeats
                self.store.create(path, data)
        try:
            self.store.create(name, record)
        except (FileExistsError, Unreachable) as err:
            # The answer may have been lost after the commit was made: what lies there decides, not the answer.
            taken = self._read_if_there(commit.seq)
            if taken is None or taken.write_id != commit.write_id:
                if isinstance(err, Unreachable) and taken is None:
                    raise
                raise fenced(commit, taken) from err
        if self._cache is not None:
            commit = self._cache.add(name, record, commit)
        newer = self._newest_after(commit.seq)
        if newer is not None and newer.overtakes(commit.seq, commit.epoch):
            raise fenced(commit, newer)  # what was made is void: line_of_history knows it by the same rule
        return commit

    def _newest_after(self, seq: int) -> Commit | None:
        """Return the newest commit if it is after `seq`; None where the store does not say: `seq` is there already."""
        try:
            newest = max(self.seqs(), default=seq)
            return self._read_if_there(newest) if newest > seq else None
        except (AccessDenied, Unreachable) as err:
            log.warning("commit %d is made; whether another process has gone past it is not known: %s", seq, err)
            return None

    def _read_if_there(self, seq: int) -> Commit | None:
        try:
            return read_commit(self.store, commit_name(seq))
        except (FileNotFoundError, CorruptState):
            return None


def read_commit(store: Store, name: str) -> Commit:
    """Return a commit and, where they lie beside it, its lists of files.

    Raises: FileNotFoundError: there is no such record. CorruptState: it or a list is damaged. ConfigError: newer.
    """
    return _parsed(store, name, store.read(name))


def _parsed(store: Store, name: str, record: bytes) -> Commit:
    return parse_commit(record, name, lambda stored: read_fragment(store, stored))


def fenced(ours: Commit, taken: Commit | None) -> Conflict:
    """Return the error of a writer that found another's commit where its own should have gone."""
    whose = "a damaged commit" if taken is None else f"one of epoch {taken.epoch} (ours is {ours.epoch})"
    return Conflict(
        f"commit {ours.seq} of step {ours.step} is taken by {whose}: another process writes to these checkpoints",
        expected="one running job per checkpoint folder",
        do="let the newer process run; this one must stop",
        code="L008",
    )


def line_of_history(known: dict[int, Commit]) -> list[Commit]:
    """Return the commits that lead to the newest one, newest first.

    A rollback or fall-back opens an epoch whose parent is an older commit: what lies between the two is abandoned.
    Numbers that are missing (collected or damaged) are stepped over, and so is what a replaced process appended.
    """
    line: list[Commit] = []
    for seq in sorted(known, reverse=True):
        commit = known[seq]
        if not line or (seq <= line[-1].parent_seq and not line[-1].overtakes(seq, commit.epoch)):
            line.append(commit)
    return line


def states_of_history(known: dict[int, Commit]) -> dict[str, list[Commit]]:
    """Return the records of each state on the line of history, newest first; a restart gives a state another record."""
    states: dict[str, list[Commit]] = {}
    for commit in line_of_history(known):
        if not commit.is_fresh:
            states.setdefault(commit.ckpt_uuid, []).append(commit)
    return states


def prepare_folder(store: Store) -> None:
    """Create FORMAT.json if it is not there, and demand that it cannot be created again.

    Every guarantee of a commit rests on the store's refusal to give a name twice.
    Raises: ConfigError: the store lets a second writer replace what exists.
    """
    create_format(store, "rckpt", (MAJOR, MINOR))


def create_format(store: Store, form: str, version: tuple[int, int]) -> None:
    """As `prepare_folder`, of a folder of any format."""
    major, minor = version
    fields: dict[str, Any] = {"format": form, "document": "folder", "major": major, "minor": minor}
    for _ in range(2):  # a folder that is not new refuses the first already
        try:
            store.create(FORMAT_NAME, seal({**fields, "store_id": uuid.uuid4().hex}))
        except FileExistsError:
            return
    raise ConfigError(
        f"{store.uri} lets a second writer replace what exists: two processes could commit under one number",
        expected="a store that refuses a name that is taken: a local file system, S3, GCS, Azure",
        do="set checkpoint.uri to another store" if form == "rckpt" else "name another store",
        code="F007",
    )


def check_format(store: Store) -> bool:
    """Return whether FORMAT.json is whole; a damaged one is logged, for each commit carries its own format too.

    Raises: ConfigError: the folder is of a newer format, or holds something else.
    """
    try:
        fields = unseal(store.read(FORMAT_NAME))
    except FileNotFoundError:
        fields = None
    if fields is None or fields.get("document") != "folder":
        log.warning("%s under %s is missing or damaged; going by the commits' own format", FORMAT_NAME, store.uri)
        return False
    if fields.get("format") != "rckpt" or fields.get("major") != MAJOR:
        raise ConfigError(
            f"{store.uri} is of format {fields.get('format')} {fields.get('major')}",
            expected=f"rckpt {MAJOR}",
            do="use the ett that wrote it, or another checkpoint.uri",
        )
    return True
