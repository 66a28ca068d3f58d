"""A job's buffer: a folder on a local disk in which commits wait for their upload, and its place in a restart."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import xxhash

from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import CommitLog, line_of_history, prepare_folder
from ett.checkpoint.file_hash import is_intact
from ett.checkpoint.incarnation import Epoch, created_now, epoch_open, life_of, new_write_id, open_epoch, writer_version
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.segment import StoredFile
from ett.clock import Clock
from ett.errors import Conflict

log = logging.getLogger(__name__)
HOST_NAME = "HOST.json"


def buffer_store(folder: Path, uri: str) -> LocalStore:
    """Return the buffer of one remote folder: another's uploads must not mix with it."""
    return LocalStore(folder / xxhash.xxh3_64_hexdigest(uri.encode()))


def host_id(local: LocalStore) -> str:
    """Return what tells this buffer from that of another host: equal for ranks that see the same folder."""
    with suppress(FileExistsError):
        local.create(HOST_NAME, seal({"document": "host", "id": uuid.uuid4().hex}))
    fields = unseal(local.read(HOST_NAME))
    return str(fields["id"]) if fields else uuid.uuid4().hex


def open_buffered_epoch(
    store: BufferedStore, restored: Commit | None, *, job: str, world_size: int, clock: Clock
) -> tuple[Epoch, bool]:
    """Fence every older life in the remote folder, and continue the numbers in the buffer. Rank 0 only.

    Returns: the epoch, and whether the newest record of the buffer, which repeats `restored`, is still to be uploaded.
    Raises: Conflict.
    """
    prepare_folder(store.local)
    prepare_folder(store.remote)
    for _ in range(8):
        known, damaged = CommitLog(store.remote).read_all()
        if restored is None or _is_in(known, restored):
            epoch = open_epoch(store.remote, restored, job=job, world_size=world_size, clock=clock)
            _forget_records(store.local, None)
            CommitLog(store.local).append(CommitLog(store.remote).read(epoch.seq))
            return epoch, False
        newest = max([0, *known, *damaged])
        number = 1 + max([restored.epoch, *(commit.epoch for commit in known.values())])
        # The buffer's record first: a death between the two loses nothing, for its number is above all.
        ours = replace(
            restored,
            type="epoch_open",
            seq=max([newest + 1, *CommitLog(store.local).seqs()]) + 1,
            parent_seq=newest + 1,
            write_id=new_write_id(),
            epoch=number,
            opened_seq=newest + 1,
            job=job,
            created=created_now(clock),
            writer_version=writer_version(),
        )
        state = next((commit for commit in line_of_history(known) if not commit.is_fresh), None)
        fence = epoch_open(
            state,
            seq=newest + 1,
            epoch=number,
            job=job,
            world_size=world_size,
            created=created_now(clock),
            life=life_of(ours),
        )
        CommitLog(store.local).append(ours)
        try:
            CommitLog(store.remote).append(fence)
        except Conflict:
            store.local.delete(commit_name(ours.seq))
            log.info("commit %d was taken while opening an epoch; trying the next", fence.seq)
            continue
        _forget_records(store.local, ours.seq)
        return Epoch(epoch=number, seq=ours.seq, life=life_of(ours), opened_seq=fence.seq), True
    raise Conflict(
        f"other processes keep writing to {store.uri}",
        expected="one running job per checkpoint folder",
        do="stop the other job, or set another checkpoint.uri",
    )


def drop_damaged(local: LocalStore, files: list[StoredFile]) -> list[str]:
    """Delete the buffer's copies whose bytes are not the committed ones; return their names."""
    dropped = [
        file.path for file in files if (local.root / file.path).exists() and not is_intact(local.root / file.path, file)
    ]
    for path in dropped:
        log.warning("%s in the buffer is damaged; the uploaded copy is read instead", path)
        local.delete(path)
    return dropped


def prune(local: LocalStore, live: set[str]) -> None:
    """Delete from the buffer all that no kept commit needs; every process that wrote there before is fenced."""
    for top in ("m", "d", "dense"):
        for name in local.list(top):
            if name not in live:
                local.delete(name)
    for name in local.unfinished():
        local.delete(name)


def _is_in(known: dict[int, Commit], commit: Commit) -> bool:
    return commit.seq in known and known[commit.seq].write_id == commit.write_id


def _forget_records(local: LocalStore, kept: int | None) -> None:
    for seq in CommitLog(local).seqs():
        if seq != kept:
            local.delete(commit_name(seq))
