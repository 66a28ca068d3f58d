"""A commit as people and other programs see it: `ett checkpoint show --json` (DESIGN section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.save_facts import CAPTURES, SaveFacts
from ett.checkpoint.save_records import SaveRecord
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import TABLE_KINDS
from ett.errors import CorruptState, NoCheckpoint, NotFound
from ett.store_uri import is_local

_NOTHING: Mapping[str, SaveRecord] = MappingProxyType({})


def commit_facts(commit: Commit, tier: str, saves: Mapping[str, SaveRecord] = _NOTHING) -> dict[str, Any]:
    """Return the facts of a commit; its digests depend neither on sharding nor on files. Args: as `commit_line`."""
    dense = commit.dense
    return {
        **commit_line(commit, tier, saves),
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
                "weight_bits": table.weight_bits,
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


def commit_line(commit: Commit, tier: str, saves: Mapping[str, SaveRecord] = _NOTHING) -> dict[str, Any]:
    """Return what a list shows of a commit. Args: saves: what its job's log says of them, which goes before its own."""
    save = _save(commit, saves)
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
        "saved": None if save is None else sum(save[f"{kind}_bytes"] for kind in (*TABLE_KINDS, "dense")),
        "stall_s": None if save is None else save["stall_s"],
        "save": save,
    }


def _save(commit: Commit, saves: Mapping[str, SaveRecord]) -> dict[str, Any] | None:
    """Return what its save wrote and took (save_facts.py); None of an older version's, and of what saved nothing."""
    facts = SaveFacts.of_stats(commit.stats)
    if facts is None or commit.type == "epoch_open":  # which repeats another commit's
        return None
    told = saves[commit.ckpt_uuid].as_json() if commit.ckpt_uuid in saves else {}
    return facts.as_json() | told


def quantised_line(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what `ett checkpoint show` says of weights that a restore gives back changed."""
    tables = [table for table in facts["tables"] if table["weight_bits"]]
    parts = [f"{table['name']} in {' and '.join(map(str, table['weight_bits']))} bits" for table in tables]
    return [("quantised", f"weights of {', '.join(parts)}; digests are of what comes back")] * bool(parts)


def lineage_line(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what `ett checkpoint show` says of the commit that its job began with, where it began with one."""
    source = facts["stats"].get("from")
    return (
        [("began with", f"commit {source['seq']}, step {source['step']} of {source.get('job') or source.get('uri')}")]
        if source
        else []
    )


def save_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what `ett checkpoint show` says of a commit's save, as names and texts."""
    save = facts["save"]
    if save is None:
        return []
    parts = [f"{kind} {save[f'{kind}_rows']} rows in {save[f'{kind}_bytes']} bytes" for kind in TABLE_KINDS]
    parts += [f"{save['tombstones']} tombstones", f"dense {save['dense_bytes']} bytes"]
    took = [f"training {save['stall_s']:.3g} s", f"written in {save['write_s']:.3g} s"]
    took += [f"uploaded in {save['upload_s']:.3g} s"] if "upload_s" in save else []
    lines = [("saved", ", ".join(parts)), ("took", ", ".join(took))]
    if thresholds := save.get("thresholds"):
        least, most = (pick(thresholds, key=lambda name: thresholds[name]) for pick in (min, max))
        ends = dict.fromkeys((least, most))  # of a hundred tables, those between are in --json
        shown = " to ".join(f"{thresholds[name]:.3f} ({name})" for name in ends)
        lines.append(("threshold", f"{shown}, tables: {len(thresholds)}"))
    ways = [f"{way} {save[f'{way}_rows']}" for way in CAPTURES if f"{way}_rows" in save]
    return lines + [("captured", ", ".join(ways) + " rows")] * bool(ways)


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
