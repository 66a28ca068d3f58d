"""A save: every rank writes rows, as the policy says, and its dense parts; one create-only record makes it a commit."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Protocol

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.canonical_json import Json, seal
from ett.checkpoint.capture.capture_counts import CaptureCounts
from ett.checkpoint.commit import Commit, TableEntry, commit_name, parse_commit
from ett.checkpoint.commit_cache import CommitCache
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.dense_entry import DenseEntry
from ett.checkpoint.dense_save import DenseSave, StagedDense
from ett.checkpoint.digest import combine
from ett.checkpoint.file_hash import stored_bytes
from ett.checkpoint.incarnation import Epoch, check_not_fenced, created_now, new_write_id, writer_version
from ett.checkpoint.policy.table_saves import TableSaves
from ett.checkpoint.quantised_rows import EXACT, WeightBits
from ett.checkpoint.ranks import Ranks, gather_or_raise, on_rank_zero
from ett.checkpoint.read_plan import REMOTE_READS
from ett.checkpoint.rng_state import rng_state
from ett.checkpoint.run_record import RunRecord
from ett.checkpoint.save_facts import written_facts
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.sharded_tensor import has_a_box
from ett.checkpoint.staging_area import StagingArea
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import TableFile, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, WrittenTable, write_tables
from ett.checkpoint.training_state import TrainingState
from ett.clock import Clock
from ett.errors import ConfigError, CorruptState, EttError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavePlace:
    """Where commits go and who writes them; one for the life of a Checkpointer."""

    store: Store  # the buffer, where there is one
    is_shared: bool = True  # rank 0 sees what every rank has written to `store`
    is_buffer: bool = False  # files of earlier commits may be in the remote folder only, which the uploader looks into
    ranks: Ranks
    run: RunRecord
    clock: Clock
    lineage: Json = None  # of a job that began with another's commit: which one; in the stats of its own
    weight_bits: WeightBits = EXACT
    reads: int = REMOTE_READS  # of a remote store that a restore has under way at once
    buffers: BufferPool = field(default_factory=BufferPool)
    staging: StagingArea = field(default_factory=StagingArea)
    commits: CommitCache = field(default_factory=CommitCache)  # of the store


@dataclass(frozen=True, kw_only=True, slots=True)
class Triggered:
    """A save at its step boundary: what it holds of that boundary beside the tables' rows."""

    step: int
    cursor: int
    began_ns: int
    held_s: float  # for how long training was held by what is here
    dense: StagedDense
    rng: Json


class Boundary(Protocol):
    """Who waits for a save that is written beside training."""

    written: list[str]  # names of files that may be there

    def leave_boundary(self) -> None:
        """Training may go on: what is left to read is in the trackers' captures."""

    def check(self) -> None:
        """Raises: EttError: the save was given up, and what it has read may be of a later step."""


class Waiting:
    """Training waits for all of a save."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def leave_boundary(self) -> None:
        return None

    def check(self) -> None:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """A save that has a name, and what it has written so far."""

    taken: Triggered
    plan: Json
    boundary: Boundary
    untracked: list[WrittenTable] = field(default_factory=list)


def trigger(place: SavePlace, tables: TableSaves, step: int, cursor: int, patience: Patience) -> Triggered:
    """Take what is copied at the boundary itself, without a call of the store; collective.

    Args: patience: with which training then waits for staging memory.
    Raises: ConfigError: state that cannot be stored. It is raised on every rank, and nothing has changed.
    """
    began_ns = place.clock.mono_ns()
    place.run.at("ckpt_before_write", step)
    dense = _stage_dense(place, tables.state)
    with tables.given_back_on_error():
        tables.freeze(patience)
    rng, held_s = rng_state(), (place.clock.mono_ns() - began_ns) / 1e9
    return Triggered(step=step, cursor=cursor, began_ns=began_ns, held_s=held_s, dense=dense, rng=rng)


def finish(place: SavePlace, tables: TableSaves, epoch: Epoch, taken: Triggered, boundary: Boundary) -> Commit:
    """Write what was taken, and commit; collective, also in a thread with ranks of its own.

    Tables that nobody keeps are written before training may go on.
    Raises: Conflict: another process has opened these checkpoints; AccessDenied, Unreachable: a rank could not write;
        what `boundary` raises. Whatever is raised is raised on every rank, and nothing visible has changed.
    """
    written, is_beside = boundary.written, not isinstance(boundary, Waiting)
    stall_s = taken.held_s if is_beside else None
    try:
        with tables.given_back_on_error():
            plan = on_rank_zero(place.ranks, lambda: _plan(place, epoch, taken))
            if place.ranks.rank == 0:
                place.run.ckpt_begin(plan["ckpt_uuid"], taken.step, taken.cursor)
            begun = _Begun(taken=taken, plan=plan, boundary=boundary)
            if tables.has_untracked:
                gather_or_raise(place.ranks, lambda: _write_untracked(place, tables, begun))
                if is_beside:
                    stall_s = (place.clock.mono_ns() - taken.began_ns) / 1e9
            boundary.leave_boundary()
            tables.plan(place.ranks)
            parts = gather_or_raise(place.ranks, lambda: _write_part(place, tables, begun))
    except EttError:
        _discard(place.store, written)
        raise
    try:
        with tables.given_back_on_error():
            place.run.at("ckpt_before_commit", plan["step"])
            commit = _appended(place, plan["seq"], lambda: _commit(place, tables, epoch, plan, parts, stall_s=stall_s))
    except EttError:
        is_unused: bool = on_rank_zero(place.ranks, lambda: _is_certainly_not_ours(place.store, plan))
        if is_unused:
            _discard(place.store, written)
        raise
    place.run.at("ckpt_after_commit", plan["step"])
    tables.committed(commit, [part["shares"] for part in parts])
    return commit


def _plan(place: SavePlace, epoch: Epoch, taken: Triggered) -> Json:
    epoch = check_not_fenced(CommitLog(place.store), epoch)
    return {
        # The epoch leads, so that what a dead life left unfinished is told from what a living one is writing.
        "ckpt_uuid": f"e{epoch.epoch:06d}-{uuid.uuid4().hex}",
        "write_id": new_write_id(epoch.life),
        "seq": epoch.seq + 1,
        "step": taken.step,
        "cursor": taken.cursor,
        "began_ns": taken.began_ns,  # by rank 0's clock
    }


def _stage_dense(place: SavePlace, state: TrainingState) -> StagedDense:
    """Copy what this rank writes of the dense state; afterwards the live tensors may change. Collective."""
    is_sharded = any(place.ranks.gather(state.is_sharded))
    staged: list[StagedDense] = []

    def stage() -> None:
        if place.ranks.rank and not is_sharded:
            staged.append(StagedDense({}, {}, is_sharded=False))
            return
        tensors, tree = state.dense(keep_parts=place.ranks.group is not None)
        if place.ranks.rank:  # what is whole is the same everywhere, and rank 0's
            tensors = {name: tensor for name, tensor in tensors.items() if has_a_box(tensor)}
        staged.append(StagedDense(place.staging.stage(tensors), tree, is_sharded=is_sharded))

    gather_or_raise(place.ranks, stage)
    return staged[0]


def _write_untracked(place: SavePlace, tables: TableSaves, begun: _Begun) -> None:
    begun.untracked.extend(_write_rows(place, tables.untracked_rows(), begun.plan, begun.boundary.written))
    begun.boundary.check()


def _write_part(place: SavePlace, tables: TableSaves, begun: _Begun) -> Json:
    """Write this rank's segments and dense files, then its fragment, which says that they are all there."""
    rank, taken, plan, written = place.ranks.rank, begun.taken, begun.plan, begun.boundary.written
    place.staging.bring()
    with DenseSave(place.store, place.ranks, _identity(place, plan, "dense"), taken.dense, written) as dense_save:
        found = _write_rows(place, tables.tracked_rows(), plan, written)
        entries, shares = tables.entries([*begun.untracked, *found])
    entry = dense_save.result()
    place.store.sync(written)
    place.run.at("ckpt_after_shard_write", plan["step"])
    captured = asdict(tables.captured())
    begun.boundary.check()
    part: Json = {"tables": entries, "dense": entry.as_json() if entry else None}
    name = f"m/{plan['ckpt_uuid']}/w{rank:05d}.json"
    fragment = seal({"document": "fragment", "ckpt_uuid": plan["ckpt_uuid"], "writer": rank, "rng": taken.rng, **part})
    place.store.create(name, fragment)
    written.append(name)
    return {"fragment": stored_bytes(name, fragment).as_json(), "shares": shares, "captured": captured, **part}


def _write_rows(place: SavePlace, rows: Iterable[RowsToWrite], plan: Json, written: list[str]) -> list[WrittenTable]:
    bits = place.weight_bits
    return write_tables(place.store, rows, _identity(place, plan, "base"), place.buffers, written, weight_bits=bits)


def _identity(place: SavePlace, plan: Json, kind: str) -> SegmentIdentity:
    return SegmentIdentity(
        ckpt_uuid=plan["ckpt_uuid"],
        seq_parent=plan["seq"] - 1,
        step=plan["step"],
        table="",
        kind=kind,
        writer=place.ranks.rank,
        part=0,
    )


def _appended(place: SavePlace, seq: int, append: Callable[[], Commit]) -> Commit:
    """Append a commit on rank 0, and return it on every rank; collective."""
    made: list[Commit] = []

    def on_zero() -> Json:
        made.append(append())
        return made[0].to_bytes().decode() if place.ranks.world_size > 1 else ""

    text: str = on_rank_zero(place.ranks, on_zero)
    return made[0] if made else parse_commit(text.encode(), commit_name(seq))


def _commit(
    place: SavePlace, tables: TableSaves, epoch: Epoch, plan: Json, parts: list[Json], *, stall_s: float | None
) -> Commit:
    """Check what all ranks have written and append the commit; the append is the last thing that can fail.

    Args: stall_s: for which training has waited; None: it waits for all of this.
    """
    # A newer life may have swept the files that are counted next.
    check_not_fenced(CommitLog(place.store), epoch.after(plan["seq"] - 1))
    own = _merged_tables([part["tables"] for part in parts])
    listed = tables.listed(own, [part["shares"] for part in parts], plan["seq"])
    dense = DenseEntry.from_json(parts[0]["dense"])
    seconds = round((place.clock.mono_ns() - plan["began_ns"]) / 1e9, 6)
    waited = seconds if stall_s is None else stall_s
    facts = written_facts(
        listed, plan["seq"], tables.thresholds(), dense_bytes=dense.num_bytes, write_s=seconds, stall_s=waited
    )
    if stall_s is not None:
        facts = facts.with_captures([CaptureCounts(**part["captured"]) for part in parts])
    commit = Commit(
        seq=plan["seq"],
        parent_seq=plan["seq"] - 1,
        type="base" if all(table.digest is not None for table in listed) else "delta",
        ckpt_uuid=plan["ckpt_uuid"],
        write_id=plan["write_id"],
        epoch=epoch.epoch,
        opened_seq=epoch.opened_seq,
        job=place.run.job or "",
        world_size=place.ranks.world_size,
        step=plan["step"],
        cursor=plan["cursor"],
        created=created_now(place.clock),
        writer_version=writer_version(),
        tables=listed,
        dense=dense,
        fragments=tuple(StoredFile.from_json(part["fragment"]) for part in parts),
        policy=tables.policy_name,
        stats=facts.as_json() | ({"from": place.lineage} if place.lineage else {}),
    )
    if place.is_shared:
        for file in commit.stored_files():
            if not place.is_buffer or plan["ckpt_uuid"] in file.path:
                _check_seen(place.store, file)
    # Of a buffer's commits nobody reads the log again and again, so that nothing would ever leave the cache.
    return CommitLog(place.store, None if place.is_buffer else place.commits).append(commit)


def _check_seen(store: Store, file: StoredFile) -> None:
    try:
        size = store.size(file.path)
    except FileNotFoundError as err:
        raise ConfigError(
            f"{file.path} was written by another rank and is not seen by rank 0 under {store.uri}",
            expected="a checkpoint.uri that all hosts share",
            code="F004",
        ) from err
    if size != file.bytes:
        raise CorruptState(f"{file.path} is {size} bytes just after {file.bytes} were written")


def _merged_tables(per_rank: list[Json]) -> tuple[TableEntry, ...]:
    """Return each table with the files of all ranks, in order of rank."""
    entries = [[TableEntry.from_json(entry) for entry in tables] for tables in per_rank]
    specs: list[list[TableSpec]] = [[entry.spec for entry in tables] for tables in entries]
    for rank, theirs in enumerate(specs):
        if theirs != specs[0]:
            raise ConfigError(
                f"rank {rank} has other tables than rank 0", expected="the same tables, states and dtypes on every rank"
            )
    merged = []
    for parts in zip(*entries, strict=True):
        files: list[TableFile] = [file for part in parts for file in part.files]
        rows = sum(part.num_rows for part in parts)
        digests = [part.digest for part in parts if part.digest is not None]
        digest = combine(digests) if len(digests) == len(parts) else None
        merged.append(TableEntry(spec=parts[0].spec, num_rows=rows, digest=digest, files=tuple(files)))
    return tuple(merged)


def _is_certainly_not_ours(store: Store, plan: Json) -> bool:
    """Return whether no commit can refer to the files of this save: its record is absent or another writer's."""
    try:
        return bool(CommitLog(store).read(plan["seq"]).write_id != plan["write_id"])
    except CorruptState:
        return plan["seq"] not in CommitLog(store).seqs()


def _discard(store: Store, names: list[str]) -> None:
    """Remove what an unsuccessful save has written; what cannot be removed is swept when the next epoch opens."""
    for name in names:
        try:
            store.delete(name)
        except EttError as err:
            log.warning("left %s of an unsuccessful save behind: %s", name, err.fact)
            return
