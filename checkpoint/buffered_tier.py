"""What a checkpointer does besides saving where its commits go to a remote folder through a buffer on a local disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ett.checkpoint.buffer import buffer_store, drop_damaged, host_id, open_buffered_epoch, prune
from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit, commit_name, parse_commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.incarnation import Epoch
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.ranks import gather_or_raise, on_rank_zero
from ett.checkpoint.retention import sweep_orphans
from ett.checkpoint.save import SavePlace
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.uploader import LAST_S, REQUEST_S, Uploader
from ett.errors import EttError, LostPeer


class BufferedTier:
    """One rank's buffer and its uploads. `before_save`, `open` and `copies` are collective."""

    def __init__(self, folder: Path, remote: SavePlace, config: CheckpointConfig) -> None:
        self.local: LocalStore = remote.run.through_faults(buffer_store(folder, remote.store.uri), "local")
        self._ranks, self._run, self._clock = remote.ranks, remote.run, remote.clock
        self._limit_bytes, self._wait_s = config.buffer_bytes, config.buffer_wait_s
        self._peer_address = config.peer_address
        self._hosts = gather_or_raise(self._ranks, lambda: host_id(self.local))
        self.reading = BufferedStore(self.local, remote.store, has_local_commits=len(set(self._hosts)) == 1)
        self.uploader = Uploader(
            self.reading, self._ranks.rank, self._ranks.world_size, keep_last=config.keep_last, clock=self._clock
        )
        self._copies: dict[int, Commit] = {}  # whose files may be in the buffer
        self._last_bytes = 0

    @property
    def is_shared(self) -> bool:
        """Return whether all ranks see one buffer; else a commit exists only when it has been uploaded."""
        return self.reading.has_local_commits

    @contextmanager
    def copies(self, step: int | None) -> Iterator[None]:
        """Have the buffers' copies of what will be restored at hand: those of this host, then those of other hosts.

        Damaged ones go, and the uploaded ones are read.
        """
        choice = on_rank_zero(self._ranks, lambda: self._candidate(step))
        if choice is None:
            yield
            return
        commit = parse_commit(choice["manifest"].encode(), commit_name(choice["seq"]))
        mine = self._to_check(commit)
        gather_or_raise(self._ranks, lambda: drop_damaged(self.local, mine))
        if self.is_shared:
            yield
            return
        from ett.checkpoint.peer_tier import peers_of  # brings a web server and a client: a fifth of a second

        address = self._peer_address
        with peers_of(self.reading, commit, mine, ranks=self._ranks, hosts=self._hosts, address=address):
            yield

    def _to_check(self, commit: Commit) -> list[StoredFile]:
        """Return this rank's part of the files of a commit that its host's buffer has, whoever has written them."""
        neighbours = [rank for rank, host in enumerate(self._hosts) if host == self._hosts[self._ranks.rank]]
        here = [file for file in commit.stored_files() if (self.local.root / file.path).exists()]
        return here[neighbours.index(self._ranks.rank) :: len(neighbours)]

    def open(self, restored: Commit | None) -> Epoch:
        """Fence every older life; what it had not yet uploaded of `restored` goes on being uploaded."""

        def on_first() -> Json:
            epoch, is_pending = open_buffered_epoch(
                self.reading,
                restored,
                job=self._run.job or "",
                world_size=self._ranks.world_size,
                clock=self._clock,
            )
            sweep_orphans(self.reading.remote, epoch.epoch, frozenset(live))
            manifest = CommitLog(self.local).read(epoch.seq).to_bytes().decode()
            return {"epoch": asdict(epoch), "is_pending": is_pending, "manifest": manifest}

        live = {file.path for file in restored.stored_files()} if restored else set()
        opened = on_rank_zero(self._ranks, on_first)
        gather_or_raise(self._ranks, lambda: prune(self.local, live))
        commit = parse_commit(opened["manifest"].encode(), commit_name(opened["epoch"]["seq"]))
        self._copies = {commit.seq: commit}
        if opened["is_pending"]:
            self.uploader.submit(commit)
        return Epoch(**opened["epoch"])

    def before_save(self) -> None:
        """Wait until the buffer has room for as much as the last save wrote, and drop copies that are not needed."""

        def wait() -> Json:
            self.uploader.wait_for_room(self._last_bytes, self._limit_bytes, self._wait_s)
            return self.uploader.newest_remote

        try:
            newest = gather_or_raise(self._ranks, wait)[0]
        except LostPeer:
            raise
        except EttError:  # on every rank alike
            given_up = self._ranks.gather(self.uploader.take_given_up())
            self.uploader.drop({seq for seqs in given_up for seq in seqs})
            raise
        for seq in sorted(seq for seq in self._copies if seq < newest):
            kept = {file.path for later in self._copies if later > seq for file in self._copies[later].stored_files()}
            self.uploader.drop_copies(self._copies.pop(seq), kept)

    def after_save(self, commit: Commit) -> None:
        self._copies[commit.seq] = commit
        self._last_bytes = sum(file.bytes for file in self.uploader.share(commit))
        self.uploader.submit(commit)

    def report(self) -> list[float]:
        """Record what has arrived, and return how long each took; called by the thread that trains, as all records."""
        arrived = self.uploader.take_uploaded()
        for uploaded in arrived:
            commit = uploaded.commit
            self._run.emit(
                "ckpt_upload",
                id=commit.ckpt_uuid,
                step=commit.step,
                bytes=uploaded.num_bytes,
                seconds=round(uploaded.seconds, 6),
            )
            if self._ranks.rank == 0:
                self._run.committed(
                    commit.step,
                    commit.cursor,
                    self.reading.uri,
                    ckpt_id=commit.ckpt_uuid,
                    num_bytes=commit.num_bytes,
                    digest=commit.digest,
                    tier="remote",
                )
        return [uploaded.seconds for uploaded in arrived]

    def close(self, *, wait: bool = True) -> None:
        """Wait until everything is uploaded, or without `wait` a few seconds for as much as arrives in them.

        Raises: Unreachable: it was not within ten minutes; Conflict.
        """
        try:
            if wait:
                self.uploader.drain(LAST_S)
            else:
                self.uploader.drain_for_stop()
        finally:
            self.report()
            self.uploader.close(REQUEST_S)

    def _candidate(self, step: int | None) -> Json:
        known, _ = CommitLog(self.reading).read_all()
        line = [commit for commit in line_of_history(known) if not commit.is_fresh]
        chosen = [commit for commit in line if step is None or commit.step == step]
        return {"seq": chosen[0].seq, "manifest": chosen[0].to_bytes().decode()} if chosen else None
