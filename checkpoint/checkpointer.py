"""The object of a training loop: restores once, saves when due, counts what fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

import ett
from ett.checkpoint.capture.boundary_rows import device_staging
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_choice import Planned
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.dense_save import import_ahead
from ett.checkpoint.due import DueSteps
from ett.checkpoint.failed_saves import FailedSaves
from ett.checkpoint.failure_history import read_failures
from ett.checkpoint.incarnation import Epoch
from ett.checkpoint.interval import parse_interval
from ett.checkpoint.job_places import open_job_store, open_places
from ett.checkpoint.policy.save_policy import Full, parse_policy
from ett.checkpoint.policy.table_saves import TableSaves
from ett.checkpoint.quantised_rows import WeightBits
from ett.checkpoint.ranks import Ranks, current_ranks
from ett.checkpoint.restore import restore_newest
from ett.checkpoint.retention_thread import RetentionThread
from ett.checkpoint.run_record import RunRecord
from ett.checkpoint.save import Boundary, SavePlace, Triggered, Waiting, finish, trigger
from ett.checkpoint.save_facts import SaveFacts
from ett.checkpoint.save_under_way import STOP_S, SaveUnderWay
from ett.checkpoint.source import Source
from ett.checkpoint.staging_area import StagingArea
from ett.checkpoint.stall_budget import Patience, StallBudget
from ett.checkpoint.store import Store
from ett.checkpoint.training_state import Stateful, TrainingState
from ett.clock import Clock, SystemClock
from ett.errors import ConfigError, NoCheckpoint, UsageError
from ett.store_uri import is_local

if TYPE_CHECKING:
    from ett.checkpoint.migrated_state import Taken
    from ett.checkpoint.restore import Restored

log = logging.getLogger(__name__)


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
        present = ranks or current_ranks()
        policy = parse_policy(config.policy, config.max_chain)
        is_tracked = config.background or not isinstance(policy, Full)
        self._config, self._source = config, Source.of_environ(os.environ)
        on_device = config.device_staging_bytes // 2 if config.background else 0  # of rows, and of dense tensors
        self._state = TrainingState(model, optimizer, loader, extra, is_tracked=is_tracked, is_copy=present.rank > 0)
        named = SavePlace(
            store=store or open_job_store(config, record),
            ranks=present,
            run=record,
            clock=clock or SystemClock(),
            weight_bits=WeightBits.of_tables(config.quantise, config.quantise_tables, self._state.names_of_tables()),
            reads=config.restore_reads,
            lineage=self._source.lineage() if self._source else None,
            staging=StagingArea(on_device),
        )
        self._places = open_places(named, config)
        self._place, self._tier = self._places.saving, self._places.tier
        self._tables = TableSaves(
            policy,
            config.policy,
            self._state,
            present,
            named.clock,
            pool=StagingPool(config.staging_bytes) if config.background else None,
            device=device_staging(config.staging_bytes, on_device) if config.background else None,
            max_live=config.max_live,
        )
        self._due = DueSteps(parse_interval(config.interval), present, named.clock, say=record.emit)
        self._failed = FailedSaves(record, present, self._due, StallBudget(config.stall_budget_s))
        self._under_way = SaveUnderWay(self._place, self._tables, self._failed)
        self._retention = RetentionThread(self._place.store, config.keep_last, self._place.commits)
        self._epoch: Epoch | None = None
        self._has_imported = False
        self._held: AbstractContextManager[object] = nullcontext() if held is None else held

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
            self._places.refuse_foreign(is_allowed=step is not None or self._config.allow_foreign)
            self._tables.await_others()
            began_ns = self._place.clock.mono_ns()
            restored = None if word == "never" else self._restore_newest(step, planned)
            if restored is None and word == "auto" and os.environ.get("ETT_HAS_COMMITTED"):
                raise NoCheckpoint(
                    f"this job has committed checkpoints, and there is none under {self._places.reading.store.uri}",
                    expected="the folder that the job saved to: training never starts over by itself",
                    do="put it back or correct checkpoint.uri; to start over: --resume never",
                )
            source = self._source if restored is None and word == "auto" else None
            taken = None if source is None else self._take_over(source)
            read_s = (self._place.clock.mono_ns() - began_ns) / 1e9
            self._epoch = self._places.open_epoch(restored.commit if restored else None)
            self._begin(restored, read_s)
        if taken is not None and source is not None:
            self._say_restored(taken.commit, taken.step, taken.cursor)
            return RestoredPosition(step=taken.step, cursor=taken.cursor, seq=taken.commit.seq, source=source.where)
        if restored is None:
            self._due.start(0)
            return None
        commit, loaded = restored.commit, restored.loaded
        log.info(
            "restored step %d from commit %d of %s: read %.1f MB of rows, kept %.1f MB%s",
            commit.step,
            commit.seq,
            self._places.reading.store.uri,
            loaded.read_bytes / 1e6,
            loaded.kept_bytes / 1e6,
            "".join(f"; whole: {why}" for why in loaded.not_kept),
        )
        self._say_restored(commit, commit.step, commit.cursor, restored)
        return RestoredPosition(
            step=commit.step, cursor=commit.cursor, seq=commit.seq, fallback_from=restored.fallback_from
        )

    def _restore_newest(self, step: int | None, planned: Planned | None) -> Restored | None:
        with self._places.copies(step):
            return restore_newest(self._places.reading, self._state, step, planned)

    def _take_over(self, source: Source) -> Taken:
        from ett.checkpoint.migrated_state import take_over  # few jobs begin with another's commit

        return take_over(self._places.reading, self._state, source, self._config.migrate)

    def _say_restored(self, commit: Commit, step: int, cursor: int, restored: Restored | None = None) -> None:
        """Args: restored: None where the commit is another job's."""
        self._due.start(step)
        fallback_from = None if restored is None else restored.fallback_from
        told: dict[str, Any] = {}
        if restored is not None:
            loaded = restored.loaded
            told = {"scope": loaded.scope, "read_bytes": loaded.read_bytes, "kept_bytes": loaded.kept_bytes}
            told |= {"not_kept": list(loaded.not_kept)} if loaded.not_kept else {}
        self._place.run.restored(
            step,
            cursor,
            ckpt_id=commit.ckpt_uuid,
            fallback_from=None if fallback_from is None else str(fallback_from),
            verified=True,
            **told,
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
        if self._places.beside is None:
            return self._failed.attempt(step, cursor, lambda: self._save(step, cursor, is_due=True))
        if self._under_way.has_ended_for(step, cursor):
            self._collect()
            self._failed.attempt(step, cursor, lambda: self._start(step, cursor))
        return None

    def save(self, step: int, cursor: int) -> Commit:
        """Save now and return the commit.

        One that is under way is waited for, and is the answer if it is of this step; if it fails, it counts as failed.
        Raises: as `ett.checkpoint.save.trigger` and `finish`; Unreachable: the one under way does not end.
        """
        is_this = self._under_way.is_of(step)
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

    def _ready(self) -> None:
        if self._epoch is None:
            self._epoch = self._places.open_unrestored()
            self._begin(None)
        if self._tier is not None:
            self._tier.before_save()

    def _start(self, step: int, cursor: int) -> None:
        """Pass the step boundary, and have the rest done beside training."""
        began_ns, place = self._place.clock.mono_ns(), self._places.beside
        assert place is not None
        with self._place.run.span("ckpt_save"):
            self._ready()
            with self._held:
                taken = trigger(self._place, self._tables, step, cursor, Patience(self._failed.budget.limit_s))
                waited_s = (taken.began_ns - began_ns) / 1e9
                self._under_way.begin(taken, lambda running: self._finished(place, taken, running), waited_s=waited_s)
        self._due.saved((self._place.clock.mono_ns() - began_ns) / 1e9)

    def _collect(self) -> Commit | None:
        """Wait for the save that is under way, if there is one, and return its commit; None: there is none.

        Raises: as `SaveUnderWay.collect`.
        """
        ended = self._under_way.collect()
        if ended is None:
            return None
        self._succeeded(ended.commit, ended.stall_s, held_s=ended.held_s)
        return ended.commit

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
        self._failed.forgive()
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
        if self._places.beside is not None and self.has_settled(0):
            self._places.beside.ranks.close()

    def has_settled(self, timeout_s: float = STOP_S) -> bool:
        """Return whether no save is under way any more, after waiting for one for a time; what it came to is lost."""
        return self._under_way.has_settled(timeout_s)

    def _say_committed(self, commit: Commit) -> None:
        self._place.run.committed(
            commit.step,
            commit.cursor,
            self._places.reading.store.uri,
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

    def _begin(self, restored: Restored | None, read_s: float = 0.0) -> None:
        """Go on from a commit or a fresh start, and from what the job's log says of its failures; collective.

        Args: read_s: for how long the commit was restored.
        """
        failures = read_failures(self._place.run, self._place.ranks, self._place.clock)
        if restored is None:
            self._due.know(failures, {})
            self._tables.begin(None, failures, read_s)
            return
        self._due.know(failures, restored.commit.stats)
        self._tables.begin(restored.commit, failures, read_s, restored.loaded.own)


def _resume_step(word: str) -> int | None:
    """Return the step that `resume` names, or None for "auto" and "never"."""
    if word in ("auto", "never"):
        return None
    if not word.isdecimal():
        raise UsageError(f"resume is {word!r}", expected="auto, never, or the step of a commit")
    return int(word)
