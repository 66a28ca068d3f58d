"""A small training job for checkpoint tests: tables, a dense model, several ranks as threads, a run that records."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import thread as executor_threads
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint import CheckpointConfig, Checkpointer, StateSpec, TableRows
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.store import Store
from ett.clock import Clock, SystemClock

T = TypeVar("T")


class DictShard(nn.Module):
    """A table's rows on one rank, by id modulo the world size; a sorted id list and tensors beside it."""

    def __init__(
        self, name: str, dim: int, states: tuple[StateSpec, ...], place: tuple[int, int], *, dtype: str = "float32"
    ) -> None:
        super().__init__()
        self.name, self.dim, self.states, self.weight_dtype = name, dim, states, dtype
        self.rank, self.world_size = place
        self._importing = threading.Lock()
        self.begin_import(0)

    def begin_import(self, num_rows: int) -> None:
        self.rows = TableRows(
            ids=torch.empty(0, dtype=torch.int64),
            weights=torch.empty((0, self.dim), dtype=getattr(torch, self.weight_dtype)),
            states={s.name: torch.empty((0, s.width), dtype=getattr(torch, s.dtype)) for s in self.states},
        )

    def owned(self, ids: Tensor) -> Tensor:
        return ids % self.world_size == self.rank

    def begin_export(self) -> Tensor:
        return self.rows.ids

    def gather(self, ids: Tensor, out: TableRows) -> None:
        at = torch.searchsorted(self.rows.ids, ids)
        assert torch.equal(self.rows.ids[at], ids)
        assert torch.equal(out.ids, ids)
        out.weights.copy_(self.rows.weights[at])
        for name, state in out.states.items():
            state.copy_(self.rows.states[name][at])

    def import_rows(self, rows: TableRows) -> None:
        assert bool(self.owned(rows.ids).all())
        with self._importing:
            ids = torch.cat([self.rows.ids, rows.ids])
            order = torch.argsort(ids)
            assert len(ids.unique()) == len(ids)
            self.rows = TableRows(
                ids=ids[order],
                weights=torch.cat([self.rows.weights, rows.weights])[order],
                states={n: torch.cat([old, rows.states[n]])[order] for n, old in self.rows.states.items()},
            )

    def end_import(self) -> None:
        return


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return a tensor of random bits, NaN payloads and denormals included; bools are 0 or 1."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(shape, dtype=dtype).numel() * torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)


class Model(nn.Module):
    """Two tables and a dense part with awkward members: bfloat16, float64, 0-d, int64 counters, a bool mask."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        adam = (StateSpec(name="exp_avg", dtype="float32", width=6), StateSpec(name="step", dtype="int64", width=1))
        one_sum = StateSpec(name="sum", dtype="float32", width=1)
        self.users = DictShard("users", 6, adam, (rank, world_size))
        self.items = DictShard("bags/items", 3, (one_sum,), (rank, world_size), dtype="bfloat16")
        self.linear = nn.Linear(5, 3)
        self.narrow = nn.Parameter(torch.zeros(7, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.zeros(4, dtype=torch.bool))
        self.register_buffer("nothing", torch.zeros((0, 3)))

    def shards(self) -> list[DictShard]:
        return [self.users, self.items]

    def fill(self, seed: int, num_rows: int = 500) -> None:
        """Set everything from a seed: the union of the ranks' rows does not depend on the world size."""
        generator = torch.Generator().manual_seed(seed)
        for shard in self.shards():
            ids = torch.randperm(num_rows * 3, generator=generator)[:num_rows].sort().values
            ids = torch.cat([torch.tensor([-(2**63)]), ids * (1 << 40) + ids, torch.tensor([2**63 - 1])])
            weights = random_bits((len(ids), shard.dim), getattr(torch, shard.weight_dtype), generator)
            states = {
                s.name: random_bits((len(ids), s.width), getattr(torch, s.dtype), generator) for s in shard.states
            }
            mine = shard.owned(ids)
            shard.rows = TableRows(
                ids=ids[mine], weights=weights[mine], states={name: value[mine] for name, value in states.items()}
            )
        with torch.no_grad():
            for value in self.state_dict().values():
                value.copy_(random_bits(tuple(value.shape), value.dtype, generator))


class Loader:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"cursor": 0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


class RecordingRun:
    """Keeps what a checkpoint says; `at` calls the hook that a test sets."""

    def __init__(self, job_dir: Path | None = None) -> None:
        self.job, self.job_dir = "test-job", job_dir
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.hook: Callable[[str, int], None] = lambda point, step: None

    @contextmanager
    def span(self, name: str, blocking: bool = True) -> Iterator[None]:
        self.said.append(("span", {"name": name, "blocking": blocking}))
        yield

    def restored(self, step: int, cursor: int, **fields: Any) -> None:
        self.said.append(("restored", {"step": step, "cursor": cursor, **fields}))

    def ckpt_begin(self, ckpt_id: str, step: int, cursor: int) -> None:
        self.said.append(("ckpt_begin", {"ckpt_id": ckpt_id, "step": step, "cursor": cursor}))

    def committed(self, step: int, cursor: int, uri: str, **fields: Any) -> None:
        self.said.append(("committed", {"step": step, "cursor": cursor, "uri": uri, **fields}))

    def emit(self, ev: str, **fields: Any) -> None:
        self.said.append((ev, fields))

    def at(self, point: str, step: int) -> None:
        self.hook(point, step)

    def through_faults(self, store: Any, tier: str) -> Any:
        return store

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.said]


class Meeting:
    """Where the threads of one world exchange values."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=300)
        self.slots: list[Any] = [None] * world_size
        self._world_size, self._lock = world_size, threading.Lock()
        self._beside: dict[int, Meeting] = {}

    def beside(self, number: int) -> Meeting:
        with self._lock:
            return self._beside.setdefault(number, Meeting(self._world_size))


class LateClock(SystemClock):
    """A clock that somebody can put forward."""

    late_ns = 0

    def mono_ns(self) -> int:
        return super().mono_ns() + self.late_ns


class ThreadRanks:
    group = None

    def __init__(self, rank: int, world_size: int, meeting: Meeting) -> None:
        self.rank, self.world_size, self._meeting = rank, world_size, meeting
        self._num_beside = 0

    def gather(self, value: Any) -> list[Any]:
        self._meeting.slots[self.rank] = value
        self._meeting.barrier.wait()
        values = list(self._meeting.slots)
        self._meeting.barrier.wait()
        return values

    def broadcast(self, value: Any) -> Any:
        return self.gather(value)[0]

    def beside(self) -> ThreadRanks:
        self._num_beside += 1
        return ThreadRanks(self.rank, self.world_size, self._meeting.beside(self._num_beside))

    def close(self) -> None:
        return


class Rank:
    """One rank's process: model, optimizer, loader, checkpointer."""

    def __init__(
        self,
        uri: Path,
        ranks: ThreadRanks,
        store: Store | None = None,
        clock: Clock | None = None,
        *,
        retires_beside: bool = False,
        **config: Any,
    ) -> None:
        """Args: retires_beside: old commits go in a thread, as in a job; else in `save`, so that all is done then."""
        self.rank = ranks.rank
        self.model = Model(ranks.rank, ranks.world_size)
        dense = [p for p in self.model.parameters() if p.dtype != torch.float64]
        self.optimizer = torch.optim.Adam([{"params": dense[:2]}, {"params": dense[2:], "lr": 0.5}])
        self.loader, self.run = Loader(), RecordingRun()
        self.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(uri), **config),
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            run=self.run,
            ranks=ranks,
            store=store,
            clock=clock,
        )
        if not retires_beside:
            retention = self.checkpointer._retention
            setattr(retention, "after_commit", retention.retire)  # noqa: B010 - of this one alone

    def fill(self, seed: int) -> None:
        self.model.fill(seed)
        generator = torch.Generator().manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * seed
            for parameter in group["params"]:
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(seed)),
                    "exp_avg": random_bits(tuple(parameter.shape), torch.float32, generator),
                    "count": torch.tensor(2**53 + seed),
                }
        self.loader.state = {"cursor": seed * 10}

    def image(self) -> dict[str, bytes]:
        """Return every bit of the state under a name, rows by id."""
        image: dict[str, bytes] = {"loader": repr(self.loader.state).encode()}
        for shard in self.model.shards():
            dtypes = [shard.rows.weights.dtype, *(shard.rows.states[state.name].dtype for state in shard.states)]
            image[f"dtypes of {shard.name}"] = repr(dtypes).encode()
        for name, value in self.model.state_dict().items():
            image[name] = raw(value)
        for number, group in enumerate(self.optimizer.param_groups):
            image[f"group {number}"] = repr(sorted((k, v) for k, v in group.items() if k != "params")).encode()
            for position, parameter in enumerate(group["params"]):
                for key, value in self.optimizer.state[parameter].items():
                    image[f"group {number} parameter {position} {key}"] = raw(value)
        return image

    def rows(self) -> dict[tuple[str, int], bytes]:
        return {
            (shard.name, int(i)): bits(shard.rows.weights[n])
            + b"".join(bits(shard.rows.states[state.name][n]) for state in shard.states)
            for shard in self.model.shards()
            for n, i in enumerate(shard.rows.ids.tolist())
        }


def raw(value: Tensor) -> bytes:
    return str(value.dtype).encode() + bits(value)


def bits(value: Tensor) -> bytes:
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def run_ranks(world_size: int, work: Callable[[ThreadRanks], T]) -> list[T | BaseException]:
    """Run `work` on every rank of a world, in threads; return results or what was raised, by rank."""
    meeting = Meeting(world_size)
    results: list[Any] = [None] * world_size

    def body(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, world_size, meeting))
        except BaseException as err:  # noqa: BLE001 - a thread's exception would be lost otherwise
            results[rank] = err
            meeting.barrier.abort()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def saved_world(uri: Path, world_size: int, seeds: list[int], **config: Any) -> None:
    """Save one commit per seed, at step = seed, on a fresh world."""

    def work(ranks: ThreadRanks) -> None:
        rank = Rank(uri, ranks, **config)
        rank.checkpointer.restore()
        for seed in seeds:
            rank.fill(seed)
            rank.checkpointer.save(seed, seed * 10)

    raise_first(run_ranks(world_size, work))


def restored_world(uri: Path, world_size: int, resume: str = "auto", **config: Any) -> list[tuple[Rank, Any]]:
    """Restore on a fresh world; return every rank and its position."""

    def work(ranks: ThreadRanks) -> tuple[Rank, Any]:
        rank = Rank(uri, ranks, **config)
        return rank, rank.checkpointer.restore(resume)

    results = run_ranks(world_size, work)
    raise_first(results)
    return results  # type: ignore[return-value]


def oracle(seed: int) -> Rank:
    """Return the state of a world of one that was never saved."""
    rank = Rank(Path("/nowhere"), ThreadRanks(0, 1, Meeting(1)))
    rank.fill(seed)
    return rank


def holds(world: list[tuple[Rank, Any]], seed: int) -> bool:
    """Return whether the ranks together hold exactly the state of `seed`."""
    expected = oracle(seed)
    rows: dict[tuple[str, int], bytes] = {}
    for rank, _ in world:
        rows |= rank.rows()
    total = sum(len(rank.rows()) for rank, _ in world)
    images = all(rank.image() == expected.image() for rank, _ in world)
    return images and rows == expected.rows() and total == len(rows)


def raise_first(results: list[Any]) -> None:
    """Raise the most telling of the ranks' exceptions, if there is one."""
    raised = [result for result in results if isinstance(result, BaseException)]
    telling = [err for err in raised if not isinstance(err, threading.BrokenBarrierError)]
    for err in telling or raised:
        raise err


def keeps_a_program(thread: threading.Thread) -> bool:
    """Return whether a program that ends waits for the thread; for an executor's it does, daemon or not."""
    return not thread.daemon or thread in executor_threads._threads_queues


def reseed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Killed(BaseException):
    """The process dies here: nothing of it runs any more, not even what would tidy up."""


class FaultStore(LocalStore):
    """A local store whose `fail_at`-th operation (from 1) fails with `error`; after a Killed, all do.

    A write that fails leaves half of its bytes.
    """

    def __init__(self, root: Path, fail_at: int, error: BaseException, *, stays: bool = False) -> None:
        super().__init__(root)
        self.fail_at, self.error, self.stays = fail_at, error, stays
        self.num_operations = 0
        self._lock = threading.Lock()

    def operate(self) -> None:
        with self._lock:
            self.num_operations += 1
            number = self.num_operations
        goes_on = self.stays or isinstance(self.error, Killed)
        if number == self.fail_at or (goes_on and number > self.fail_at):
            raise self.error

    @contextmanager
    def create_stream(self, name: str) -> Iterator[Any]:
        with super().create_stream(name) as file:
            yield FaultFile(file, self)

    def _fsync(self, descriptor: int) -> None:
        self.operate()
        super()._fsync(descriptor)

    def _link(self, temporary: Path, final: Path) -> None:
        self.operate()
        super()._link(temporary, final)

    def _unlink(self, path: Path) -> None:
        if not self.stays:
            self.operate()
        super()._unlink(path)


class FaultFile:
    def __init__(self, file: Any, store: FaultStore) -> None:
        self._file, self._store = file, store

    def write(self, data: Any) -> None:
        try:
            self._store.operate()
        except BaseException:
            self._file.write(bytes(data)[: len(data) // 2])
            self._file.flush()
            raise
        self._file.write(data)
