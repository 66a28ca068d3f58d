"""`@ett.restartable`: a rank that outlives the loss of another one, with its process, model and caches in place.

    @ett.restartable
    def train() -> None:
        dist.init_process_group("gloo")       # the environment is that of the newest generation
        start = checkpointer.restore()
        ...

With `[recovery] restart = "inprocess"` a rank that ends is started anew alone. In the others the collective fails, the
function is left, the process group destroyed, and the function called again in the next generation, once all of its
ranks are there: one that fails at its start holds up nobody. An error of the rank's own is raised as ever. Outside such
a launch the function is simply called.
"""

from __future__ import annotations

import functools
import gc
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import ParamSpec, TypeVar

from ett.errors import EttError, LostPeer
from ett.failure import names_lost_peer
from ett.generation import FOLDER_VARIABLE, Generation, GenerationFolder
from ett.process_group import leave_process_group
from ett.tracker import Run, init

P = ParamSpec("P")
T = TypeVar("T")

# A peer's process may take long from its error to its end, and the supervisor ends us anyway where no generation comes.
NEXT_GENERATION_S, POLL_S = 60.0, 0.02
# For the others to come to a generation; then the program's own process group says how long it waits.
COMPLETE_S = 600.0
STOPPED_CODE = 143


def restartable(train: Callable[P, T]) -> Callable[P, T]:
    """Return `train`, called again in the next generation whenever another rank was lost.

    The function joins the process group, restores and trains; what it makes, it makes again. What should outlive a
    generation is made outside.
    """

    @functools.wraps(train)
    def through_generations(*args: P.args, **kwargs: P.kwargs) -> T:
        run, place = init(), os.environ.get(FOLDER_VARIABLE)
        if not place or not run.is_recording:
            return train(*args, **kwargs)
        rank = _Rank(run, GenerationFolder(Path(place)), int(os.environ.get("ETT_GEN", "0")))
        while True:
            rank.join_newest()
            num_frozen = gc.get_freeze_count()
            try:
                return train(*args, **kwargs)
            except (RuntimeError, ValueError, OSError, EttError) as err:  # what a lost peer can look like
                if not rank.may_come_back(err):
                    raise
            # Only here are the frames of the lost generation gone, and with them the tensors that they held.
            leave_process_group(may_be_frozen=gc.get_freeze_count() != num_frozen)

    return through_generations


class _Rank:
    def __init__(self, run: Run, folder: GenerationFolder, started_in: int) -> None:
        self._run, self._folder, self._number, self._started_in = run, folder, -1, started_in
        self._place = int(os.environ.get("LOCAL_RANK", "0"))

    def join_newest(self) -> None:
        """Return once all ranks of the newest generation are there; the environment is that of this rank in it."""
        while True:
            newest, world_size = self._folder.newest, self._run.world_size
            self._number = max(newest.number, self._started_in)
            os.environ.update(newest.environ_at(self._place))
            self._run.begin_generation(self._number, os.environ)
            is_resized = self._run.world_size != world_size
            with self._run.span("elastic_reconfig") if is_resized else nullcontext():
                self._folder.join(self._number, self._run.rank)
                if self._is_complete_in_time(newest):
                    return

    def _is_complete_in_time(self, newest: Generation) -> bool:
        """Wait for the others; False where the next generation is announced before all of them came."""
        until_s = time.monotonic() + COMPLETE_S
        while not self._folder.is_complete(newest) and time.monotonic() < until_s:
            if self._sees_next():
                return False
            self._leave_if_stopped()
            time.sleep(POLL_S)
        return True

    def may_come_back(self, err: Exception) -> bool:
        """Return True once the next generation is announced; False where the error is this rank's own."""
        if self._sees_next():
            return True
        if not is_lost_peer(err):
            return False
        until_s = time.monotonic() + NEXT_GENERATION_S
        while time.monotonic() < until_s:
            if self._sees_next():
                return True
            self._leave_if_stopped()
            time.sleep(POLL_S)
        return False

    def _sees_next(self) -> bool:
        return self._folder.newest.number > self._number

    def _leave_if_stopped(self) -> None:
        if self._run.stop_requested:
            raise SystemExit(STOPPED_CODE)  # what was committed is all that can be saved


def is_lost_peer(err: BaseException) -> bool:
    """True for what a rank meets when another one is gone: gloo's, NCCL's and the store's errors have no class."""
    if isinstance(err, LostPeer | ConnectionError) or type(err).__name__.startswith("Dist"):
        return True
    return isinstance(err, RuntimeError) and names_lost_peer(str(err))
