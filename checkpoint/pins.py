"""What retention must keep: pins, which people set, and leases, which readers hold while they copy a commit."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ett.checkpoint.canonical_json import seal, unseal, well_formed
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.store import Store
from ett.errors import AccessDenied, ConfigError, Conflict, CorruptState, NotFound

log = logging.getLogger(__name__)
LEASE_S = 24 * 3600.0  # a reader that died holds its commit for so long
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """A commit that somebody holds. name: of a pin; of a lease, "" and its reader in `why`."""

    seq: int
    name: str
    why: str


def holds(store: Store, now_unix_s: float) -> list[Hold]:
    """Return all pins and living leases. Raises: CorruptState: one is damaged, so that nobody knows what it holds."""
    found = []
    for top in ("pins", "leases"):
        for entry in store.entries(top):
            if top == "leases" and now_unix_s - entry.modified_unix_s > LEASE_S:
                continue
            try:
                fields = unseal(store.read(entry.name))
            except FileNotFoundError:
                continue  # given up meanwhile
            if fields is None:
                raise CorruptState(f"{entry.name} under {store.uri} is damaged", do="delete it, or set the pin again")
            name = entry.name.removeprefix("pins/").removesuffix(".json") if top == "pins" else ""
            with well_formed(f"{entry.name} under {store.uri}"):
                why = f"pin {name}" if top == "pins" else f"read by {fields['reader']}"
                found.append(Hold(seq=int(fields["seq"]), name=name, why=why))
    return found


def dead_leases(store: Store, now_unix_s: float) -> list[str]:
    """Return the names of leases whose readers are believed dead."""
    return [entry.name for entry in store.entries("leases") if now_unix_s - entry.modified_unix_s > LEASE_S]


def pin(store: Store, commit: Commit, name: str) -> None:
    """Keep a commit until `unpin`. Raises: Conflict: the name holds another commit; ConfigError; CorruptState."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a pin cannot be named {name!r}", expected="letters, digits, '.', '_' and '-'")
    fields = {"document": "pin", "seq": commit.seq, "step": commit.step, "set_unix_s": int(time.time())}
    try:
        store.create(f"pins/{name}.json", seal(fields))
    except FileExistsError as err:
        held = unseal(store.read(f"pins/{name}.json"))
        if held is None or held.get("seq") != commit.seq:
            raise Conflict(
                f"the pin {name} holds another commit", do=f"`ett checkpoint unpin … {name}`, or another --name"
            ) from err
    _check_still_there(store, commit, f"pins/{name}.json")


def unpin(store: Store, name: str) -> None:
    """Give a pinned commit back to retention. Raises: NotFound."""
    names = [entry.removeprefix("pins/").removesuffix(".json") for entry in store.list("pins")]
    if name not in names:
        raise NotFound(f"no pin is named {name!r}", expected=f"one of {', '.join(names) or '(none)'}")
    store.delete(f"pins/{name}.json")


@contextmanager
def leased(store: Store, commit: Commit, reader: str) -> Iterator[None]:
    """Hold a commit while it is read, where this reader may write; else what it reads is checked, but not held.

    Raises: CorruptState: it was collected just before.
    """
    name = f"leases/{uuid.uuid4().hex}.json"
    try:
        store.create(name, seal({"document": "lease", "seq": commit.seq, "reader": reader}))
    except AccessDenied as err:
        log.info("commit %d is read without a lease: %s", commit.seq, err.fact)
        yield
        return
    try:
        _check_still_there(store, commit, name)
        yield
    finally:
        store.delete(name)


def _check_still_there(store: Store, commit: Commit, name: str) -> None:
    """Raise CorruptState, and give up the hold, if retention was faster: it deletes records before files."""
    try:
        store.size(commit_name(commit.seq))
        check_files(store, commit)
    except (FileNotFoundError, CorruptState) as err:
        store.delete(name)
        raise CorruptState(f"commit {commit.seq} of step {commit.step} is not whole: {err}") from err
