"""Where a job's checkpoints are: the store that it names, a buffer before a remote one, and its epochs there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.foreign import refuse_foreign
from ett.checkpoint.incarnation import Epoch, open_epoch
from ett.checkpoint.ranks import on_rank_zero
from ett.checkpoint.retention import sweep_orphans
from ett.checkpoint.run_record import RunRecord
from ett.checkpoint.save import SavePlace
from ett.checkpoint.store import Store, open_store
from ett.errors import Conflict
from ett.store_uri import is_local

if TYPE_CHECKING:
    from ett.checkpoint.buffered_tier import BufferedTier


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlaces:
    """What a Checkpointer opens, once."""

    saving: SavePlace  # of the buffer, where there is one
    reading: SavePlace  # where a restore looks: there, and in the store that the job names
    beside: SavePlace | None  # as `saving`, for the part of a save that training does not wait for
    tier: BufferedTier | None  # the buffer, and its uploads

    def copies(self, step: int | None) -> AbstractContextManager[None]:
        """Have buffers' copies of what will be restored at hand: see `BufferedTier.copies`; collective."""
        return nullcontext() if self.tier is None else self.tier.copies(step)

    def refuse_foreign(self, *, is_allowed: bool) -> None:
        """Raises: ConfigError, on every rank: the newest commit is another job's, which is not allowed."""
        place = self.reading
        on_rank_zero(place.ranks, lambda: refuse_foreign(place.store, place.run.job or "", is_allowed=is_allowed))

    def open_epoch(self, restored: Commit | None) -> Epoch:
        """Fence every older life of the job; collective."""
        if self.tier is not None:
            return self.tier.open(restored)

        def open_on_rank_zero() -> Json:
            place = self.saving
            epoch = open_epoch(
                place.store, restored, job=place.run.job or "", world_size=place.ranks.world_size, clock=place.clock
            )
            sweep_orphans(place.store, epoch.epoch)
            return asdict(epoch)

        return Epoch(**on_rank_zero(self.saving.ranks, open_on_rank_zero))

    def open_unrestored(self) -> Epoch:
        """As `open_epoch`, for a process that never called restore(); refused where that would hide what is there."""

        def refuse_to_hide() -> None:
            known, damaged = CommitLog(self.reading.store).read_all()
            if damaged or any(not commit.is_fresh for commit in known.values()):
                raise Conflict(
                    f"{self.reading.store.uri} holds the commits of an earlier run",
                    expected="restore() before the first save",
                    do='call restore(), or restore(resume="never") to start over',
                )

        on_rank_zero(self.saving.ranks, refuse_to_hide)
        return self.open_epoch(None)


def open_job_store(config: CheckpointConfig, run: RunRecord) -> Store:
    """Open the store that a job names, or a folder of its own."""
    return open_store(config.uri or (str(Path(run.job_dir) / "checkpoints") if run.job_dir else ""))


def open_places(named: SavePlace, config: CheckpointConfig) -> JobPlaces:
    """Put a buffer before the store that a job names, where there is to be one, and planned faults before both.

    Collective.
    """
    buffer = _buffer_folder(config, named)
    is_remote = buffer is not None or not is_local(named.store.uri)
    faulty: Store = named.run.through_faults(named.store, "remote" if is_remote else "local")
    saving = reading = named = replace(named, store=faulty)
    tier: BufferedTier | None = None
    if buffer is not None:
        from ett.checkpoint.buffered_tier import BufferedTier  # saves to a local folder do without

        tier = BufferedTier(buffer, named, config)
        reading = replace(named, store=tier.reading)
        saving = replace(named, store=tier.local, is_shared=tier.is_shared, is_buffer=True)
    beside = replace(saving, ranks=saving.ranks.beside()) if config.background else None
    return JobPlaces(saving=saving, reading=reading, beside=beside, tier=tier)


def _buffer_folder(config: CheckpointConfig, named: SavePlace) -> Path | None:
    """Return where saves to a remote store are buffered; None: they go there directly."""
    if config.buffer_dir:
        return Path(config.buffer_dir).expanduser().absolute() / (named.run.job or "")
    if is_local(named.store.uri) or not named.run.job_dir:
        return None
    return Path(named.run.job_dir) / "buffer"
