"""How the ranks of a job agree: JSON values gathered and broadcast, on a gloo group of the checkpoint's own."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from ett import errors
from ett.checkpoint.canonical_json import Json, canonical_json
from ett.checkpoint.lost_peer import peers_named
from ett.errors import EttError, Unreachable, UsageError
from ett.in_time import ended_in_time

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

log = logging.getLogger(__name__)
LEAVE_S = 10.0  # for a group's connections to close, which takes milliseconds where nobody hangs
# A save or restore of a large shard may keep one rank busy for long while the others wait in a collective.
COLLECTIVE_TIMEOUT = timedelta(hours=1)


class Ranks(Protocol):
    rank: int
    world_size: int
    group: ProcessGroup | None  # the checkpoint's own, of gloo; one thread at a time may use it

    def gather(self, value: Json) -> list[Json]:
        """Return the values of all ranks, in order of rank, on every rank."""

    def broadcast(self, value: Json) -> Json:
        """Return rank 0's value on every rank; the others' values are ignored."""

    def beside(self) -> Ranks:
        """Return the same ranks for another thread, which may meet while this one does; every rank calls."""

    def close(self) -> None: ...


class SoloRanks:
    """A job of one process."""

    rank = 0
    world_size = 1
    group: ProcessGroup | None = None

    def gather(self, value: Json) -> list[Json]:
        return [json.loads(canonical_json(value))]

    def broadcast(self, value: Json) -> Json:
        return json.loads(canonical_json(value))

    def beside(self) -> SoloRanks:
        return self

    def close(self) -> None:
        return


class GlooRanks:
    """The ranks of torch.distributed's default group. Never the user's group: its collectives would interleave."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        with peers_named():
            self.group: ProcessGroup | None = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        self.rank = dist.get_rank(self.group)
        self.world_size = dist.get_world_size(self.group)

    def gather(self, value: Json) -> list[Json]:
        with peers_named():
            return self._gather(_as_tensor(value))

    def _gather(self, mine: Tensor) -> list[Json]:
        import torch

        lengths = torch.zeros(self.world_size, dtype=torch.int64)
        lengths[self.rank] = len(mine)
        self._dist.all_reduce(lengths, group=self.group)
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        self._dist.all_gather(parts, padded, group=self.group)
        return [_as_json(part[:length]) for part, length in zip(parts, lengths.tolist(), strict=True)]

    def broadcast(self, value: Json) -> Json:
        with peers_named():
            return self._broadcast(_as_tensor(value if self.rank == 0 else None))

    def _broadcast(self, mine: Tensor) -> Json:
        import torch

        length = torch.tensor([len(mine)], dtype=torch.int64)
        self._dist.broadcast(length, group_src=0, group=self.group)
        data = mine if self.rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        self._dist.broadcast(data, group_src=0, group=self.group)
        return _as_json(data)

    def beside(self) -> GlooRanks:
        return GlooRanks()

    def close(self) -> None:
        # The last reference goes with it: a group whose threads are there when the interpreter ends may abort it.
        group, self.group = self.group, None
        if group is not None:  # None is the program's own, for torch
            is_closed = ended_in_time(lambda: self._dist.destroy_process_group(group), LEAVE_S, "ckpt-leave-group")
            if not is_closed:
                log.warning("the process group of saves was not closed within %.0f s; this process ends it", LEAVE_S)


def current_ranks() -> Ranks:
    """Return the ranks of this process: torch.distributed's if it is initialised, else this process alone.

    Raises: UsageError: it was started as one of several ranks, which would race for one folder, each as the only one.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return GlooRanks()
    declared = os.environ.get("WORLD_SIZE", "1")
    if declared.isdecimal() and int(declared) > 1:
        raise UsageError(
            f"WORLD_SIZE is {declared} and torch.distributed has no process group",
            expected="a process group, through which the ranks agree on one checkpoint",
            do="call torch.distributed.init_process_group() before Checkpointer(...), or pass ranks=SoloRanks() "
            "(ett.checkpoint.ranks) where every rank has a folder of its own",
        )
    return SoloRanks()


def gather_or_raise(ranks: Ranks, action: Callable[[], Json]) -> list[Json]:
    """Run `action` on every rank and return all results; where it failed on one, raise that error on all.

    Raises: EttError: of the lowest rank that failed, its class kept, the rank named.
    """
    results = ranks.gather(_attempt(action))
    for rank, result in enumerate(results):
        if "error" in result:
            raise error_from_json(result["error"], "" if ranks.world_size == 1 else f"rank {rank}: ")
    return [result["value"] for result in results]


def on_rank_zero(ranks: Ranks, action: Callable[[], Json]) -> Json:
    """Run `action` on rank 0 alone and return its result on every rank; its failure is raised on all."""
    result = ranks.broadcast(_attempt(action) if ranks.rank == 0 else None)
    if "error" in result:
        raise error_from_json(result["error"], "")
    return result["value"]


def _attempt(action: Callable[[], Json]) -> Json:
    try:
        return {"value": action()}
    except EttError as err:
        return {"error": error_as_json(err)}
    except OSError as err:
        return {"error": error_as_json(Unreachable(f"{type(err).__name__}: {err}", code="S003"))}


def error_as_json(err: EttError) -> Json:
    texts = {"fact": err.fact, "expected": err.expected, "do": err.do, "did": err.did, "code": err.code}
    return {"class": type(err).__name__, **texts}


def error_from_json(error: Json, prefix: str) -> EttError:
    kind = getattr(errors, error["class"], EttError)
    rebuilt: EttError = kind(
        prefix + error["fact"],
        expected=error["expected"],
        do=error["do"],
        did=error["did"],
        code=error["code"],
    )
    return rebuilt


def _as_tensor(value: Json) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(canonical_json(value)), dtype=torch.uint8)


def _as_json(data: Tensor) -> Json:
    return json.loads(data.numpy().tobytes())
