"""What a rank leaves for rank 0 about a commit that it cannot send, so that nobody waits for the rest of its files."""

from __future__ import annotations

from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.commit import Commit
from ett.checkpoint.ranks import error_as_json, error_from_json
from ett.checkpoint.store import Store
from ett.errors import CorruptState, EttError


def leave_note(store: Store, commit: Commit, rank: int, err: EttError) -> None:
    store.create(_name(commit, rank), seal({"document": "given_up", "error": error_as_json(err)}))


def read_note(store: Store, commit: Commit, rank: int) -> EttError | None:
    """Return why `rank` has given the commit up; None: it has not."""
    try:
        fields = unseal(store.read(_name(commit, rank)))
    except FileNotFoundError:
        return None
    if fields is None:
        return CorruptState(f"rank {rank} gave commit {commit.seq} up, and its note cannot be read")
    return error_from_json(fields["error"], f"rank {rank}: ")


def _name(commit: Commit, rank: int) -> str:
    # Beside the fragments, so that the next start sweeps it; with the number, for a repeated upload has another one.
    return f"m/{commit.ckpt_uuid}/given-up-{commit.seq:016d}-{rank:05d}.json"
