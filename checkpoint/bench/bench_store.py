"""`ett bench store`: saves and restores beside the disk alone and beside torch.distributed.checkpoint."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ett.bench import BenchResult
from ett.checkpoint.bench.bench_disk import WAYS, Disk, drop_from_cache
from ett.checkpoint.bench.bench_process import measured_process
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.bench_s3 import upload_figure
from ett.checkpoint.bench.bench_tables import bench_model, forget, has_its_bits, tables_of
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.retention import retire
from ett.checkpoint.store import open_store
from ett.checkpoint.worker_threads import num_io_threads
from ett.errors import ThresholdMissed
from ett.figures import FIGURES, Measured

_WORKLOAD = FIGURES.parent / "workloads" / "store.toml"


def run(quick: bool, path: Path = _WORKLOAD) -> BenchResult:
    """Measure the table [store] of figures.toml on the disk of the current folder; restored bits are compared first."""
    workload = tomllib.loads(path.read_text())
    with tempfile.TemporaryDirectory(prefix=".ett-bench-store-", dir=".") as name:
        folder = Path(name).absolute()
        rates, detail = _beside_each_other(workload, folder, quick)
        memory = measured_process({**workload, "what": "memory", "quick": quick}, folder)
        growth = measured_process({**workload, "what": "growth", "quick": quick}, folder)
        s3, sent = upload_figure(workload, folder / "s3", quick)
    extra = Measured(name="extra_memory_mib", unit="MiB", samples=memory["extra_mib"], reason=memory["reason"])
    grown = Measured(name="growth_over_500_saves", unit="", samples=[growth["worst"]], reason=growth["reason"])
    return BenchResult(figures=[*rates, extra, grown, s3], detail={**detail, **sent, "growth": growth})


class _Ours:
    def __init__(self, folder: Path, model: nn.Module) -> None:
        self._folder, self._model = folder, model
        self._store = open_store(str(folder))
        self._checkpointer = self._new()
        self._step = 0

    def save_s(self) -> float:
        self._step += 1
        began = time.perf_counter()
        self._checkpointer.save(self._step, self._step)
        seconds = time.perf_counter() - began
        retire(self._store, 1)
        return seconds

    def restore_s(self) -> float:
        checkpointer = self._new()
        drop_from_cache(self._folder)
        began = time.perf_counter()
        checkpointer.restore()
        seconds = time.perf_counter() - began
        self._checkpointer = checkpointer
        return seconds

    def _new(self) -> Checkpointer:
        # Every party deletes what it wrote before outside its time: 10 ms a file here, which is the file system's.
        config = CheckpointConfig(uri=str(self._folder), keep_last=1000)
        return Checkpointer(config, model=self._model, run=QuietRun(), store=self._store)


class _Theirs:
    """torch.distributed.checkpoint in one process, with as many threads, files flushed, tensors read in place."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self._folder = folder
        self._state = {table.name: table.tensors() for table in tables_of(model)}
        self._number = 0

    def save_s(self) -> float:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        shutil.rmtree(self._folder, ignore_errors=True)
        self._number += 1
        writer = FileSystemWriter(self._folder / str(self._number), thread_count=num_io_threads(), sync_files=True)
        began = time.perf_counter()
        save(self._state, storage_writer=writer, no_dist=True)
        return time.perf_counter() - began

    def restore_s(self) -> float:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        drop_from_cache(self._folder)
        reader = FileSystemReader(self._folder / str(self._number))
        began = time.perf_counter()
        load(self._state, storage_reader=reader, no_dist=True)
        return time.perf_counter() - began


def _beside_each_other(workload: dict[str, Any], folder: Path, quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return the four ratios. Raises: ThresholdMissed: a restore brought other bits."""
    num_rows = workload["tables"]["quick_rows" if quick else "rows"]
    model = bench_model(workload["tables"], num_rows)
    ours, theirs = _Ours(folder / "ours", model), _Theirs(folder / "theirs", model)
    _check(ours, model, workload["tables"], num_rows)
    _check(theirs, model, workload["tables"], num_rows)
    disk = Disk(folder / "disk", sum(table.num_bytes for table in tables_of(model)))
    alone = {way: (disk.write_s(way), disk.read_s(way)) for way in WAYS}
    write_way, read_way = (min(WAYS, key=lambda way: alone[way][at]) for at in (0, 1))
    parties: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "disk": (lambda: disk.write_s(write_way), lambda: disk.read_s(read_way)),
        "ours": (ours.save_s, ours.restore_s),
        "dcp": (theirs.save_s, theirs.restore_s),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in parties}
    for number in range(workload["pairs"]["quick_rounds" if quick else "rounds"]):
        for name in list(parties)[:: -1 if number % 2 else 1]:
            write, read = parties[name]
            seconds[name].append((write(), read()))
    reason = f"{disk.num_bytes / 1e9:.2f} GB, {num_io_threads()} threads; disk: {write_way} writes, {read_way} reads"
    figures = [
        Measured(
            name=f"{verb}_vs_{other}",
            unit="",
            samples=[theirs[at] / mine[at] for theirs, mine in zip(seconds[other], seconds["ours"], strict=True)],
            reason=reason,
        )
        for other in ("disk", "dcp")
        for at, verb in enumerate(("save", "read"))
    ]
    rates = {
        name: {
            verb: round(disk.num_bytes / 1e6 / statistics.median(pair[at] for pair in pairs))
            for at, verb in enumerate(("write_mb_s", "read_mb_s"))
        }
        for name, pairs in seconds.items()
    }
    once = {way: [round(disk.num_bytes / 1e6 / value) for value in pair] for way, pair in alone.items()}
    return figures, {"rates": rates, "disk": once, "seconds": seconds}


def _check(party: _Ours | _Theirs, model: nn.Module, workload: dict[str, Any], num_rows: int) -> None:
    party.save_s()
    forget(model)
    party.restore_s()
    if not has_its_bits(model, workload, num_rows):
        raise ThresholdMissed(
            f"{type(party).__name__.strip('_').lower()}: a restore brought other rows than were saved"
        )
