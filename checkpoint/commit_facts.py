"""A commit as people and other programs see it: `ett checkpoint show --json` (DESIGN section 3)."""

from __future__ import annotations

from typing import Any

from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.store import Store
from ett.checkpoint.store_uri import is_local
from ett.errors import CorruptState, NoCheckpoint, NotFound


def commit_facts(commit: Commit, tier: str) -> dict[str, Any]:
    """Return the facts of a commit; its digests depend neither on sharding nor on files."""
    dense = commit.dense
    return {
        **commit_line(commit, tier),
        "policy": commit.policy,
        "ckpt_uuid": commit.ckpt_uuid,
        "parent_seq": commit.parent_seq,
        "job": commit.job,
        "writer_version": commit.writer_version,
        "digest": commit.digest,
        "tables": [
            {
                "name": table.spec.name,
                "rows": table.num_rows,
                "bytes": table.num_bytes,
                "digest": table.digest,
                "dim": table.spec.dim,
                "dtype": table.spec.groups[0].dtype,
                "states": [group.name.removeprefix("state:") for group in table.spec.groups[1:]],
                "files": len(table.files),
            }
            for table in commit.tables
        ],
        "dense": {"bytes": dense.num_bytes, "digest": dense.digest, "tensors": dense.num_items} if dense else None,
        "chain": _chain(commit),
        "stats": commit.stats,
    }


def _chain(commit: Commit) -> list[dict[str, Any]]:
    """Return what a restore reads: the tables' files by the commit that they were captured for, then all the rest."""
    totals: dict[tuple[int, str], int] = {}
    for table in commit.tables:
        for file in table.files:
            key = file.seq, file.identity.kind
            totals[key] = totals.get(key, 0) + file.stored.bytes
    rest = commit.num_bytes - sum(totals.values())
    if commit.dense is not None:
        totals[commit.files_seq, "dense"] = rest
    return [{"seq": seq, "kind": kind, "bytes": size} for (seq, kind), size in sorted(totals.items())]


def tier_of(store: Store, seq: int) -> str:
    """Return what a commit survives: "local" the end of a process, "remote" the loss of the host."""
    if isinstance(store, BufferedStore):
        return "remote" if "remote" in store.tiers(commit_name(seq)) else "local"
    return "local" if is_local(store.uri) else "remote"


def commit_line(commit: Commit, tier: str) -> dict[str, Any]:
    """Return what a list shows of a commit."""
    return {
        "seq": commit.seq,
        "step": commit.step,
        "cursor": commit.cursor,
        "type": commit.type,
        "epoch": commit.epoch,
        "world_size": commit.world_size,
        "bytes": commit.num_bytes,
        "created": commit.created,
        "tier": tier,
    }


def find_commit(store: Store, step: int | None) -> tuple[Commit, list[str]]:
    """Return the newest commit, or the newest of `step`, by its record alone, and warnings of damaged records.

    Raises: NoCheckpoint: there is none at all. NotFound: none of `step`. CorruptState: only damaged ones.
    """
    known, damaged = CommitLog(store).read_all()
    warnings = [err.fact for err in damaged.values()]
    line = [commit for commit in line_of_history(known) if not commit.is_fresh]
    if step is None and line:
        return line[0], warnings
    stored = [commit for commit in known.values() if not commit.is_fresh]
    of_step = [commit for commit in stored if commit.step == step]
    if of_step:
        return max(of_step, key=lambda commit: commit.seq), warnings
    if damaged:
        raise CorruptState(damaged[max(damaged)].fact, do="`ett checkpoint verify` shows the damage")
    if not stored:
        raise NoCheckpoint(f"no checkpoint under {store.uri}")
    steps = ", ".join(str(step) for step in sorted({commit.step for commit in stored}))
    raise NotFound(f"no checkpoint of step {step} under {store.uri}", expected=f"one of the steps {steps}")
