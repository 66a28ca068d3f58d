"""A rewrite: the newest commit's state in new files, so that a restore reads a base instead of a chain.

It is a life of the job of its own: its record has the next number and the next epoch, so that a process which still
writes here finds its number taken and stops, as after a restart; a commit that is made meanwhile takes the number, and
the rewrite is refused. The files that it lists are written and read back before, the dense state's are listed again.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace

from ett.checkpoint.buffered_store import BufferedStore, shared
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_log import CommitLog, states_of_history
from ett.checkpoint.incarnation import created_now, new_write_id, writer_version
from ett.checkpoint.pins import leased
from ett.checkpoint.progress import Watch, unwatched
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.rewritten_table import rewrite_table
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.store import Store
from ett.clock import Clock, SystemClock
from ett.errors import Conflict, CorruptState, EttError, NoCheckpoint, UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compaction:
    """A plan. source: the newest state; newest: the newest record, which may repeat it."""

    source: Commit
    newest: Commit

    @property
    def is_needed(self) -> bool:
        return any(file.identity.kind != "base" for table in self.source.tables for file in table.files)

    @property
    def live_bytes(self) -> int:
        """Return about how many bytes the new files of the tables will have."""
        return sum(table.num_rows * (table.spec.row_bytes + 2) for table in self.source.tables)


def plan_compaction(store: Store, step: int | None = None) -> Compaction:
    """Return what a rewrite would start from.

    Raises: NoCheckpoint. CorruptState: a record cannot be read. UsageError: `step` is not the newest state's.
        Conflict: this host's buffer has commits that are not uploaded.
    """
    known, damaged = CommitLog(shared(store)).read_all()
    if damaged:
        raise CorruptState(
            f"commit {max(damaged)} cannot be read: a rewrite would hide what it holds",
            do="`ett checkpoint verify` shows the damage",
        )
    states = list(states_of_history(known).values())
    if not states:
        raise NoCheckpoint(f"no checkpoint under {store.uri}")
    plan = Compaction(source=states[0][0], newest=known[max(known)])
    if isinstance(store, BufferedStore):
        _refuse_unsent(store, plan)
    if step not in (None, plan.source.step):
        raise UsageError(
            f"the newest checkpoint under {store.uri} is of step {plan.source.step}, not {step}",
            expected="the newest: a rewrite becomes the newest commit, and the job goes on from it",
            do=f"leave --step out; `ett checkpoint export --step {step}` copies an older one out",
        )
    return plan


def compact(store: Store, plan: Compaction, clock: Clock | None = None, watch: Watch = unwatched) -> Commit:
    """Write and commit the rewrite; the old chain stays until it is collected.

    Raises: Conflict: somebody else has committed meanwhile. CorruptState: a digest is not the one of the source.
        Whatever is raised, nothing visible has changed.
    """
    store = shared(store)
    written: list[str] = []
    with leased(store, plan.source, "ett checkpoint compact"):
        try:
            with watch(store, "rewriting", plan.source.num_bytes + plan.live_bytes) as reading:
                rewrite = _write(reading, plan, written, clock or SystemClock())
            check_files(store, rewrite)
            check_unmoved(store, plan)
        except (EttError, FileNotFoundError):
            _discard(store, written)
            check_unmoved(store, plan)  # a start of the job sweeps what is written here: then that is why
            raise
        try:
            return CommitLog(store).append(rewrite)
        except Conflict as err:
            _discard(store, written)
            raise _moved(store, rewrite.seq) from err


def check_unmoved(store: Store, plan: Compaction) -> None:
    """Raise Conflict when there is a newer record than when the plan was made."""
    newest = max(CommitLog(shared(store)).seqs(), default=0)
    if newest != plan.newest.seq:
        raise _moved(store, newest)


def _write(store: Store, plan: Compaction, written: list[str], clock: Clock) -> Commit:
    """Return the record, not yet made, of tables that have been written and read back."""
    source, seq = plan.source, plan.newest.seq + 1
    # Of the newest epoch, whose files gc leaves alone; what a death leaves is swept when the job opens the next one.
    ckpt_uuid = f"e{plan.newest.epoch:06d}-{uuid.uuid4().hex}"
    identity = SegmentIdentity(
        ckpt_uuid=ckpt_uuid, seq_parent=seq - 1, step=source.step, table="", kind="base", writer=0, part=0
    )
    began_ns = clock.mono_ns()
    tables: list[TableEntry] = []
    for table in source.tables:
        made = sum(len(done.files) for done in tables)
        tables.append(rewrite_table(store, table, identity, made, written))
    return replace(
        source,
        type="rewrite",
        seq=seq,
        parent_seq=plan.newest.seq,
        epoch=plan.newest.epoch + 1,
        opened_seq=seq,
        job=plan.newest.job,
        ckpt_uuid=ckpt_uuid,
        write_id=new_write_id(),
        created=created_now(clock),
        writer_version=writer_version(),
        tables=tuple(tables),
        lists=(),
        stats={"rewrite_s": round((clock.mono_ns() - began_ns) / 1e9, 6)},
    )


def _refuse_unsent(store: BufferedStore, plan: Compaction) -> None:
    known, _ = CommitLog(store).read_all()
    unsent = [commit.step for commit in known.values() if commit.seq > plan.newest.seq and not commit.is_fresh]
    if unsent:
        steps = ", ".join(map(str, sorted(unsent)))
        raise Conflict(
            f"the checkpoints of steps {steps} wait in {store.local.uri} for their upload",
            expected="a job that has sent what it saved",
            do="start the job on this host, which sends them, and compact when it has ended",
        )


def _moved(store: Store, seq: int) -> Conflict:
    return Conflict(
        f"commit {seq} was made under {store.uri} meanwhile",
        expected="a job that does not run while its checkpoints are rewritten",
        did="committed nothing, and removed what was written",
        do="compact again when the job has ended",
    )


def _discard(store: Store, names: list[str]) -> None:
    for name in names:
        try:
            store.delete(name)
        except EttError as err:
            log.warning("left %s behind, which the next start of the job sweeps: %s", name, err.fact)
            return
