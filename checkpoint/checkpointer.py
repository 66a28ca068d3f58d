"""The object of a training loop: restores once, saves when due, counts what fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

import ett
from ett.checkpoint.at_exit import end_with_program
from ett.checkpoint.background_save import BackgroundSave
from ett.checkpoint.canonical_json import Json
from ett.checkpoint.capture.boundary_rows import device_staging
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_choice import Planned
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.dense_save import import_ahead
from ett.checkpoint.due import DueSteps
from ett.checkpoint.failure_history import read_failures
from ett.checkpoint.foreign import refuse_foreign
from ett.checkpoint.incarnation import Epoch, open_epoch
from ett.checkpoint.interval import parse_interval
from ett.checkpoint.policy.save_policy import Full, parse_policy
from ett.checkpoint.policy.table_saves import TableSaves
from ett.checkpoint.quantised_rows import WeightBits
from ett.checkpoint.ranks import Ranks, current_ranks, on_rank_zero
from ett.checkpoint.restore import restore_newest
from ett.checkpoint.retention import sweep_orphans
from ett.checkpoint.retention_thread import RetentionThread
from ett.checkpoint.run_record import RunRecord
from ett.checkpoint.save import Boundary, SavePlace, Triggered, Waiting, finish, trigger
from ett.checkpoint.save_facts import SaveFacts
from ett.checkpoint.source import Source
from ett.checkpoint.stall_budget import OVER_BUDGET, Patience, StallBudget, over_budget
from ett.checkpoint.store import Store, open_store
from ett.checkpoint.store_uri import is_local
from ett.checkpoint.training_state import Stateful, TrainingState
from ett.clock import Clock, SystemClock
from ett.errors import ConfigError, Conflict, EttError, LostPeer, NoCheckpoint, UsageError
from ett.section import nearest

if TYPE_CHECKING:
    from ett.checkpoint.buffered_tier import BufferedTier
    from ett.checkpoint.migrated_state import Taken

log = logging.getLogger(__name__)
FAILED_SAVES_IN_A_ROW = 3
STOP_S = 5.0  # that whoever stops waits for a save that is under way
END_S = 600.0  # that whoever restores, saves or closes does
EXIT_S = 30.0  # that a program that ends without `close` does
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredPosition:
    """Where training goes on: `step` optimizer steps are complete, `cursor` global samples are consumed."""

    step: int
    cursor: int
    seq: int  # the commit that was loaded
    fallback_from: int | None = None  # the newest commit, if that did not verify
    source: str = ""  # another job's commit, with which this one begins (`ett launch --from`)


class Checkpointer:
    """Saves and restores one training process together with those of the other ranks.

    Tables are the modules of `model` with the TableShard protocol, and where the policy writes parts of tables, large
    embeddings of torch (torch_tables.py); all else of the model, `optimizer` and `extra` are dense and the same on
    every rank; `loader` gives the position in the data. `optimizer` may be a list of torch's, such as SparseAdam and
    Adam. All calls are collective.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        model: nn.Module,
        optimizer: Stateful | Sequence[Optimizer] | None = None,
        loader: Stateful | None = None,
        extra: Stateful | None = None,
        run: RunRecord | None = None,
        ranks: Ranks | None = None,
        store: Store | None = None,
        clock: Clock | None = None,
        held: AbstractContextManager[object] | None = None,
    ) -> None:
        """Args: held: entered around every save: within it rows are those of a whole step, and nobody else is there."""
        record: RunRecord = run if run is not None else ett.init()
        self._config = config
        self._source = Source.of_environ(os.environ)
        policy = parse_policy(config.policy, config.max_chain)
        bare, present = store or open_store(config.uri or _job_uri(record)), ranks or current_ranks()
        buffer = _buffer_folder(config, bare, record)
        is_remote = buffer is not None or not is_local(bare.uri)
        opened: Store = record.through_faults(bare, "remote" if is_remote else "local")
        is_tracked = config.background or not isinstance(policy, Full)
        self._state = TrainingState(model, optimizer, loader, extra, is_tracked=is_tracked, is_copy=present.rank > 0)
        self._place = SavePlace(
            store=opened,
            ranks=present,
            run=record,
            clock=clock or SystemClock(),
            weight_bits=_weight_bits(config, self._state),
            reads=config.restore_reads,
            lineage=self._source.lineage() if self._source else None,
        )
        self._reading = self._place  # where a restore looks
        self._tier: BufferedTier | None = None
        if buffer is not None:
            from ett.checkpoint.buffered_tier import BufferedTier  # saves to a local folder do without

            self._tier = BufferedTier(buffer, self._place, config)
            self._reading = replace(self._place, store=self._tier.reading)
            is_shared = self._tier.is_shared
            self._place = replace(self._place, store=self._tier.local, is_shared=is_shared, is_buffer=True)
        pool = StagingPool(config.staging_bytes) if config.background else None
        device = device_staging(config.staging_bytes, config.device_staging_bytes) if config.background else None
        self._tables = TableSaves(
            policy,
            config.policy,
            self._state,
            present,
            self._place.clock,
            pool=pool,
            device=device,
            max_live=config.max_live,
        )
        # Where the part of a save is done that training does not wait for.
        self._beside = replace(self._place, ranks=present.beside()) if config.background else None
        self._running: BackgroundSave | None = None
        # Before its step boundary: for room in the buffer, and for rows to be those of a whole step.
        self._waited_s = 0.0
        self._retention = RetentionThread(self._place.store, config.keep_last)
        self._due = DueSteps(parse_interval(config.interval), self._place.ranks, self._place.clock, say=record.emit)
        self._epoch: Epoch | None = None
        self._failed_in_a_row = 0
        self._budget = StallBudget(config.stall_budget_s)
        self._has_imported = False
        self._held: AbstractContextManager[object] = nullcontext() if held is None else held
        end_with_program(self)

    def restore(self, resume: str | None = None, *, planned: Planned | None = None) -> RestoredPosition | None:
        """Load the state to go on from and fence every older process; None on a fresh start.

        A save that is under way is waited for. Where there is no commit yet, and `ett launch --from` named another
        job's, the job begins with that one, as `migrate` of the config says.

        Args:
            resume: "auto", "never", or a step; $ETT_RESUME where not given.
            planned: what rank 0 has found ahead (`ett.checkpoint.commit_choice.plan_ahead`).
        Raises: RestoreFailed, NoCheckpoint, NotFound, Conflict, AccessDenied: on every rank alike.
            ConfigError: the folder holds another job's commits, no step was named, checkpoint.allow_foreign is not set.
        """
        self._collect()
        word = resume if resume is not None else os.environ.get("ETT_RESUME", "auto")
        step = _resume_step(word)
        with self._place.run.span("restore"):
            on_rank_zero(self._place.ranks, lambda: self._refuse_foreign(is_explicit=step is not None))
            self._tables.await_others()
            began_ns = self._place.clock.mono_ns()
            has_copies = self._tier is not None and word != "never"
            with self._tier.copies(step) if self._tier is not None and has_copies else nullcontext():
                restored = None if word == "never" else restore_newest(self._reading, self._state, step, planned)
            if restored is None and word == "auto" and os.environ.get("ETT_HAS_COMMITTED"):
                raise NoCheckpoint(
                    f"this job has committed checkpoints, and there is none under {self._reading.store.uri}",
                    expected="the folder that the job saved to: training never starts over by itself",
                    do="put it back or correct checkpoint.uri; to start over: --resume never",
                )
            source = self._source if restored is None and word == "auto" else None
            taken = None if source is None else self._take_over(source)
            read_s = (self._place.clock.mono_ns() - began_ns) / 1e9
            self._epoch = self._open(restored.commit if restored else None)
            self._begin(restored.commit if restored else None, read_s)
        if taken is not None and source is not None:
            self._say_restored(taken.commit, taken.step, taken.cursor)
            return RestoredPosition(step=taken.step, cursor=taken.cursor, seq=taken.commit.seq, source=source.where)
        if restored is None:
            self._due.start(0)
            return None
        commit = restored.commit
        log.info("restored step %d from commit %d of %s", commit.step, commit.seq, self._reading.store.uri)
        self._say_restored(commit, commit.step, commit.cursor, restored.fallback_from)
        return RestoredPosition(
            step=commit.step, cursor=commit.cursor, seq=commit.seq, fallback_from=restored.fallback_from
        )

    def _take_over(self, source: Source) -> Taken:
        from ett.checkpoint.migrated_state import take_over  # few jobs begin with another's commit

        return take_over(self._reading, self._state, source, self._config.migrate)

    def _say_restored(self, commit: Commit, step: int, cursor: int, fallback_from: int | None = None) -> None:
        self._due.start(step)
        self._place.run.restored(
            step,
            cursor,
            ckpt_id=commit.ckpt_uuid,
            fallback_from=None if fallback_from is None else str(fallback_from),
            verified=True,
        )

    def step(self, step: int, cursor: int) -> Commit | None:
        """Save if the interval says so; call it after every step with the counts after that step.

        A save that fails is logged, counted and recorded, and training goes on; the third in a row is raised. So is one
        that would hold training for longer than its budget, but after three in a row the next may.
        Returns: the commit, if training has waited for it.
        Raises: Conflict: another process has taken over these checkpoints: stop. LostPeer: a rank is gone.
        """
        if not self._has_imported:
            self._has_imported = True
            import_ahead()
        if self._tier is not None:
            for upload_s in self._tier.report():
                self._due.uploaded(upload_s)
        if not self._due.is_due(step):
            return None
        if self._beside is None:
            return self._attempt(step, cursor, lambda: self._save(step, cursor, is_due=True))
        if self._may_begin(step, cursor):
            self._attempt(step, cursor, lambda: self._start(step, cursor))
        return None

    def save(self, step: int, cursor: int) -> Commit:
        """Save now and return the commit. Raises: as `ett.checkpoint.save.trigger`.

        One that is under way is waited for, and is the answer if it is of this step; if it fails, it counts as failed.
        Raises: Unreachable: it does not end.
        """
        is_this = self._running is not None and self._running.step == step
        commit = self._collect()
        if is_this and commit is not None:
            return commit
        return self._save(step, cursor, is_due=False)

    def _save(self, step: int, cursor: int, *, is_due: bool) -> Commit:
        """Save while training waits. Args: is_due: by the interval, so that the budget counts."""
        began_ns = self._place.clock.mono_ns()
        with self._place.run.span("ckpt_save"):
            self._ready()
            with self._held:
                taken = trigger(self._place, self._tables, step, cursor, Patience(0.0))
                commit = self._finished(self._place, taken, Waiting())
        stall_s = (self._place.clock.mono_ns() - began_ns) / 1e9
        self._due.saved(stall_s)
        self._succeeded(commit, stall_s, held_s=stall_s if is_due else 0.0)
        return commit

    def _attempt(self, step: int, cursor: int, work: Callable[[], Result], *, may_block: bool = True) -> Result | None:
        """Do a part of a save; one that fails is logged and counted, and the third in a row is raised.

        Args: may_block: False where it comes to nothing so as not to hold training, which is no failure.
        """
        try:
            return work()
        except (Conflict, ConfigError, LostPeer):
            raise
        except EttError as err:
            self._due.failed()
            if err.code == OVER_BUDGET and not may_block:
                self._budget.num_over += 1
                log.warning("step %d is not saved (%d in a row): %s", step, self._budget.num_over, err)
                self._say_abandoned(step, cursor, err, self._budget.num_over)
                return None
            self._failed_in_a_row, self._budget.num_over = self._failed_in_a_row + 1, 0
            log.error("the save at step %d failed (%d in a row): %s", step, self._failed_in_a_row, err)
            self._say_abandoned(step, cursor, err, self._failed_in_a_row)
            if self._failed_in_a_row >= FAILED_SAVES_IN_A_ROW:
                raise
            return None

    def _say_abandoned(self, step: int, cursor: int, err: EttError, in_a_row: int) -> None:
        if self._place.ranks.rank == 0:
            self._place.run.emit("ckpt_abandoned", step=step, cursor=cursor, code=err.code, in_a_row=in_a_row)

    def _ready(self) -> None:
        if self._epoch is None:
            self._epoch = self._open_unrestored()
            self._begin(None)
        if self._tier is not None:
            self._tier.before_save()

    def _may_begin(self, step: int, cursor: int) -> bool:
        """Wait for the save that is under way, as long as the budget allows, and return whether it has ended.

        Else the save of `step` is skipped. One under way that might hold training, and in that time does nothing at
        all, is given up.
        """
        running, may_block, limit_s = self._running, self._budget.may_block, self._budget.limit_s
        if running is None:
            return True
        began_ns, before = self._place.clock.mono_ns(), self._done_by(running)
        with self._place.run.span("ckpt_save"):
            ended = running.wait(limit_s)
            told = self._place.ranks.gather([ended, ended or self._done_by(running) != before])
        self._waited_s += (self._place.clock.mono_ns() - began_ns) / 1e9
        if all(has_ended for has_ended, _ in told):
            self._collect()
            return True
        err = over_budget(f"the save at step {running.step} is still under way after training waited {limit_s:.3g} s")
        is_stuck = may_block and not any(goes_on for _, goes_on in told)
        if is_stuck:
            self._give_up(running, err)
        self._attempt(step, cursor, partial(_raise, err), may_block=is_stuck)
        return False

    def _done_by(self, running: BackgroundSave) -> tuple[int, int]:
        """Return what grows while a save goes on."""
        return len(running.written), self._place.buffers.num_lent

    def _give_up(self, running: BackgroundSave, err: EttError) -> None:
        """Have a save come to nothing, unless it is being committed: training waits for none of it any more."""
        running.given_up = running.given_up or err
        self._tables.give_up(err)

    def _start(self, step: int, cursor: int) -> None:
        """Pass the step boundary, and have the rest done beside training."""
        began_ns, place = self._place.clock.mono_ns(), self._beside
        assert place is not None
        with self._place.run.span("ckpt_save"):
            self._ready()
            with self._held:
                taken = trigger(self._place, self._tables, step, cursor, Patience(self._budget.limit_s))
                with self._tables.given_back_on_error():  # Ctrl-C
                    self._running = BackgroundSave(
                        step,
                        cursor,
                        lambda running: self._finished(place, taken, running),
                        may_block=self._budget.may_block,
                    )
                self._pass_boundary(self._running)
        self._waited_s = (taken.began_ns - began_ns) / 1e9
        self._due.saved((self._place.clock.mono_ns() - began_ns) / 1e9)

    def _pass_boundary(self, running: BackgroundSave) -> None:
        """Wait until the tables that nobody keeps are written, if there are any."""
        if not self._tables.has_untracked:
            return
        has_passed = False
        try:
            has_passed = all(self._place.ranks.gather(running.wait_for_boundary(END_S)))
        finally:
            if not has_passed:  # also by Ctrl-C: whatever it reads from now on is of no boundary
                what = f"the save at step {running.step} has not written the tables that training waits for"
                self._give_up(running, over_budget(f"{what} in {END_S:g} s"))
        if not has_passed:
            running.check()

    def _collect(self) -> Commit | None:
        """Wait for the save that is under way, if there is one, and return its commit; None: there is none.

        Raises: Unreachable: it does not end.
        """
        running = self._running
        if running is None:
            return None
        began_ns = self._place.clock.mono_ns()
        with self._place.run.span("ckpt_save"):
            if not running.wait(END_S):  # whoever is interrupted in it, by Ctrl-C, has it under way still
                self._give_up(running, over_budget(f"the save at step {running.step} has not ended in {END_S:g} s"))
                running.check()
            self._running = None
            if running.came_to_nothing:
                return None
            commit = self._attempt(running.step, running.cursor, running.result, may_block=running.may_block)
        if commit is not None:
            held_s = commit.stats["stall_s"] + self._waited_s
            self._succeeded(commit, held_s + (self._place.clock.mono_ns() - began_ns) / 1e9, held_s=held_s)
        return commit

    def _finished(self, place: SavePlace, taken: Triggered, boundary: Boundary) -> Commit:
        """Write and commit what a step boundary has left to do; by either thread."""
        assert self._epoch is not None
        commit = finish(place, self._tables, self._epoch, taken, boundary)
        is_first = place.ranks.rank == 0
        if self._tier is not None:
            self._tier.after_save(commit)
        if is_first and place.is_shared:
            self._say_committed(commit)
        if is_first and self._tier is None:
            self._retention.after_commit()
        return commit

    def _succeeded(self, commit: Commit, stall_s: float, *, held_s: float) -> None:
        """Args: held_s: of `stall_s`, what nobody asked to wait for, as a program does that calls `save` or `close`."""
        assert self._epoch is not None
        self._epoch = self._epoch.after(commit.seq)
        self._failed_in_a_row = self._budget.num_over = 0
        self._due.written(commit.stats["write_s"])
        if self._place.ranks.rank == 0:
            self._say_saved(commit, stall_s, held_s)

    def touched(self, table: str, ids: NDArray[np.int64] | None) -> None:
        """Have rows saved again that were written to without the table's knowledge.

        Args: ids: int64 [N], in any order; those that are no rows of this rank are passed over; None: all of them.
        Raises: ConfigError: there is no such table, or ids are no list of int64.
        """
        names = self._state.names_of_tables()
        if table not in names:
            known = ", ".join(sorted(names)) or "no tables"
            raise ConfigError(f"no table is named {table!r}", expected=f"one of: {known}")
        if ids is not None and (ids.dtype != np.int64 or ids.ndim != 1):
            raise ConfigError(
                f"ids of table {table!r} are {ids.dtype} {list(ids.shape)}",
                expected="int64 [N], or None for all rows",
                do="convert them with numpy.asarray(ids, numpy.int64).ravel()",
            )
        self._tables.touched(table, ids)

    def close(self, *, wait: bool = True) -> None:
        """Wait until what was saved is uploaded and old commits are gone, and give up the process group.

        No call is possible afterwards. Old commits that a store does not delete within a minute stay, with a warning.

        Args: wait: False for a job that was told to stop: it waits a few seconds at most, and what has not arrived by
            then is logged; it stays in the buffer, and the next start sends it.
        Raises: Unreachable: the remote store did not take it in time; it stays in the buffer.
        """
        with ExitStack() as last:  # from bottom to top, all of it, whatever fails
            last.callback(self._place.ranks.close)
            last.callback(self._close_beside)
            last.callback(self._retention.close, wait=wait)
            if self._tier is not None:
                last.callback(self._tier.close, wait=wait)
            if wait:
                self._collect()
            self.has_settled()

    def _close_beside(self) -> None:
        if self._beside is not None and self.has_settled(0):
            self._beside.ranks.close()

    def end_with_program(self) -> None:
        """Wait for the save that is under way when nobody has called `close`, half a minute, or give it up."""
        running = self._running
        if running is None or running.wait(0):
            return
        log.info("the program ends: it waits for the save at step %d", running.step)
        if running.wait(EXIT_S):
            return
        self._give_up(running, over_budget(f"the program ended {EXIT_S:g} s ago, and has waited for it"))
        running.wait(STOP_S)
        log.warning("the save at step %d was not committed before the program ended", running.step)

    def has_settled(self, timeout_s: float = STOP_S) -> bool:
        """Return whether no save is under way any more, after waiting for one for a time; what it came to is lost."""
        return self._running is None or self._running.wait(timeout_s)

    def _refuse_foreign(self, *, is_explicit: bool) -> None:
        is_allowed = is_explicit or self._config.allow_foreign
        refuse_foreign(self._reading.store, self._place.run.job or "", is_allowed=is_allowed)

    def _say_committed(self, commit: Commit) -> None:
        self._place.run.committed(
            commit.step,
            commit.cursor,
            self._reading.store.uri,
            ckpt_id=commit.ckpt_uuid,
            num_bytes=commit.num_bytes,
            digest=commit.digest,
            tier="local" if self._tier is not None or is_local(self._place.store.uri) else "remote",
        )

    def _say_saved(self, commit: Commit, stall_s: float, held_s: float) -> None:
        facts, budget_s = SaveFacts.of_stats(commit.stats), self._config.stall_budget_s
        assert facts is not None, "a commit that was just saved"
        is_over = held_s > budget_s
        if is_over:
            log.warning("the save at step %d held training for %.2f s, budget %.2f s", commit.step, held_s, budget_s)
        told = {"id": commit.ckpt_uuid, "step": commit.step, "policy": commit.policy, "over_budget": is_over}
        self._place.run.emit("ckpt_detail", **told, **replace(facts, stall_s=round(stall_s, 6)).flat())

    def _begin(self, restored: Commit | None, read_s: float = 0.0) -> None:
        """Go on from a commit or a fresh start, and from what the job's log says of its failures; collective.

        Args: read_s: for how long the commit was restored.
        """
        failures = read_failures(self._place.run, self._place.ranks, self._place.clock)
        self._due.know(failures, restored.stats if restored else {})
        self._tables.begin(restored, failures, read_s)

    def _open(self, restored: Commit | None) -> Epoch:
        if self._tier is not None:
            return self._tier.open(restored)

        def open_on_rank_zero() -> Json:
            place = self._place
            epoch = open_epoch(
                place.store, restored, job=place.run.job or "", world_size=place.ranks.world_size, clock=place.clock
            )
            sweep_orphans(place.store, epoch.epoch)
            return asdict(epoch)

        return Epoch(**on_rank_zero(self._place.ranks, open_on_rank_zero))

    def _open_unrestored(self) -> Epoch:
        """Open an epoch for a process that never called restore(); refused where that would hide what is there."""

        def refuse_to_hide() -> None:
            known, damaged = CommitLog(self._reading.store).read_all()
            if damaged or any(not commit.is_fresh for commit in known.values()):
                raise Conflict(
                    f"{self._reading.store.uri} holds the commits of an earlier run",
                    expected="restore() before the first save",
                    do='call restore(), or restore(resume="never") to start over',
                )

        on_rank_zero(self._place.ranks, refuse_to_hide)
        return self._open(None)


def _raise(err: EttError) -> None:
    raise err


def _job_uri(run: RunRecord) -> str:
    folder = run.job_dir
    return str(Path(folder) / "checkpoints") if folder else ""


def _buffer_folder(config: CheckpointConfig, store: Store, run: RunRecord) -> Path | None:
    """Return where saves to a remote store are buffered; None: they go there directly."""
    if config.buffer_dir:
        return Path(config.buffer_dir).expanduser().absolute() / (run.job or "")
    if is_local(store.uri) or not run.job_dir:
        return None
    return Path(run.job_dir) / "buffer"


def _weight_bits(config: CheckpointConfig, state: TrainingState) -> WeightBits:
    names = state.names_of_tables()
    for name in config.quantise_tables:
        if name not in names:
            raise ConfigError(
                f"checkpoint.quantise_tables has {name!r}, and no table is named so", expected=nearest(name, names)
            )
    return WeightBits(config.quantise, config.quantise_tables)


def _resume_step(word: str) -> int | None:
    """Return the step that `resume` names, or None for "auto" and "never"."""
    if word in ("auto", "never"):
        return None
    if not word.isdecimal():
        raise UsageError(f"resume is {word!r}", expected="auto, never, or the step of a commit")
    return int(word)
