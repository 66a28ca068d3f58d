"""The cheap checks of a commit before it is read: every file there, of its size, the small ones whole."""

from __future__ import annotations

import xxhash

from ett.checkpoint.canonical_json import Json, unseal
from ett.checkpoint.commit import Commit
from ett.checkpoint.dense_entry import METADATA_NAME
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.store import Store
from ett.checkpoint.worker_threads import in_threads
from ett.errors import CorruptState


def check_files(store: Store, commit: Commit, reads: int = 1) -> None:
    """Raise CorruptState unless every file of the commit is there with its size, and its fragments are whole.

    Args: reads: requests under way at once.
    """
    in_threads(commit.stored_files(), lambda file: check_size(store, file), reads)
    in_threads(commit.fragments, lambda fragment: read_fragment(store, fragment), reads)
    if commit.dense is not None and commit.dense.dcp_version is not None:
        read_whole(store, commit.dense.named(METADATA_NAME))  # that no reader of ours opens


def check_size(store: Store, file: StoredFile) -> None:
    try:
        size = store.size(file.path)
    except FileNotFoundError as err:
        raise missing(file) from err
    if size != file.bytes:
        raise CorruptState(f"{file.path} is {size} bytes, the manifest says {file.bytes}", do="restore another commit")


def read_fragment(store: Store, stored: StoredFile) -> Json:
    """Return a writer's fragment. Raises: CorruptState: missing or altered."""
    fields = unseal(read_whole(store, stored))
    if fields is None:
        raise altered(stored)
    return fields


def read_whole(store: Store, stored: StoredFile) -> bytes:
    """Return a small file. Raises: CorruptState: missing or altered."""
    try:
        data = store.read(stored.path)
    except FileNotFoundError as err:
        raise missing(stored) from err
    if xxhash.xxh3_128_hexdigest(data) != stored.xxh3_128:
        raise altered(stored)
    return data


def missing(stored: StoredFile) -> CorruptState:
    return CorruptState(f"{stored.path} is missing", do="restore another commit")


def altered(stored: StoredFile) -> CorruptState:
    return CorruptState(f"{stored.path} does not match its checksum", do="restore another commit")
