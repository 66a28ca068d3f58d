"""One rank that saves through a buffer, and a remote folder that a test holds up or takes away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkpoint_world import Meeting, Rank, ThreadRanks, holds

from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.local_store import LocalStore
from ett.errors import Unreachable


class Remote(LocalStore):
    """A remote folder whose uploads wait at a gate, and which can be gone from its n-th change on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.num_changes, self.gone_from = 0, 0
        self.before: Callable[[str], None] = lambda name: None

    def put_file(self, name: str, path: Path, digest: str) -> None:
        assert self.gate.wait(300)
        self._change(name)
        super().put_file(name, path, digest)

    @contextmanager
    def create_stream(self, name: str) -> Iterator[Any]:
        self._change(name)
        with super().create_stream(name) as file:
            yield file

    def delete(self, name: str) -> None:
        self._change(name)
        super().delete(name)

    def _change(self, name: str) -> None:
        self.before(name)
        self.num_changes += 1
        if self.gone_from and self.num_changes >= self.gone_from:
            raise Unreachable("gone")


def started(remote: LocalStore, buffer: Path, **config: Any) -> Rank:
    rank = Rank(remote.root, ThreadRanks(0, 1, Meeting(1)), store=remote, buffer_dir=str(buffer), **config)
    rank.position = rank.checkpointer.restore()  # type: ignore[attr-defined]
    return rank


def save(rank: Rank, seed: int) -> None:
    rank.fill(seed)
    rank.checkpointer.save(seed, seed * 10)


def die(rank: Rank) -> None:
    """End a life without a word: nothing of it runs any more."""
    assert rank.checkpointer._tier is not None
    rank.checkpointer._tier.uploader.close()


def wait_for_an_answer(rank: Rank) -> None:
    """Return when a request of the upload has failed."""
    uploader, pause = rank.checkpointer._tier.uploader, threading.Event()  # type: ignore[union-attr]
    assert any(uploader._trouble or pause.wait(0.001) for _ in range(60_000)), "no request has failed"


def is_state(rank: Rank, seed: int) -> bool:
    return holds([(rank, None)], seed)


def remote_step(remote: LocalStore) -> int:
    known, damaged = CommitLog(LocalStore(remote.root)).read_all()
    assert not damaged
    return line_of_history(known)[0].step


def files(folder: Path) -> set[str]:
    return {path.name for top in ("d", "m", "dense") for path in folder.rglob(f"{top}/**/*") if path.is_file()}
