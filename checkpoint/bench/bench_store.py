"""`ett bench store`: saves and restores beside the disk alone and beside torch.distributed.checkpoint."""

from __future__ import annotations

import statistics
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ett.bench import BenchResult
from ett.checkpoint.bench.bench_bound import rates_of_work, with_overlap
from ett.checkpoint.bench.bench_disk import WAYS, Disk
from ett.checkpoint.bench.bench_parties import Ours, Theirs
from ett.checkpoint.bench.bench_process import measured_process
from ett.checkpoint.bench.bench_s3 import upload_figure
from ett.checkpoint.bench.bench_tables import bench_model, forget, has_its_bits, tables_of
from ett.checkpoint.bench.spent import Spent, check_moved
from ett.checkpoint.worker_threads import num_io_threads
from ett.errors import ThresholdMissed
from ett.figures import FIGURES, Measured

Round = tuple[Spent, Spent]  # of a save and of a restore, or of the disk alone
_VERBS = ("save", "read")
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


def _beside_each_other(workload: dict[str, Any], folder: Path, quick: bool) -> tuple[list[Measured], dict[str, Any]]:
    """Return the four ratios.

    Raises: ThresholdMissed: a restore brought other bits, before the rounds or after them, or the disk was not asked.
    """
    num_rows = workload["tables"]["quick_rows" if quick else "rows"]
    model = bench_model(workload["tables"], num_rows)
    ours, theirs = Ours(folder / "ours", model), Theirs(folder / "theirs", model)
    disk = Disk(folder / "disk", sum(table.num_bytes for table in tables_of(model)))
    for party in (ours, theirs):
        _check(party, model, workload["tables"], num_rows)
    alone = {way: (disk.write_s(way), disk.read_s(way)) for way in WAYS}
    write_way, read_way = (min(WAYS, key=lambda way: alone[way][at]) for at in (0, 1))
    parties: dict[str, tuple[Callable[[], Spent], Callable[[], Spent]]] = {
        "disk": (lambda: disk.write(write_way), lambda: disk.read(read_way)),
        "ours": (ours.save, ours.restore),
        "dcp": (theirs.save, theirs.restore),
    }
    rounds: dict[str, list[Round]] = {name: [] for name in parties}
    for number in range(workload["pairs"]["quick_rounds" if quick else "rounds"]):
        for name in list(parties)[:: -1 if number % 2 else 1]:
            write, read = parties[name]
            rounds[name].append((write(), read()))
            check_moved(f"{name}, written", rounds[name][-1][0].written_bytes, disk.num_bytes)
            check_moved(f"{name}, read", rounds[name][-1][1].read_bytes, disk.num_bytes)
    _check(ours, model, workload["tables"], num_rows)
    once = {way: [round(disk.num_bytes / 1e6 / value) for value in pair] for way, pair in alone.items()}
    ways = f"disk: {write_way} writes, {read_way} reads"
    detail = {
        "rates": {name: _rates(disk.num_bytes, theirs) for name, theirs in rounds.items()},
        "disk": once,
        "bound": _bounds(rounds, disk.num_bytes, rates_of_work(model)),
        "seconds": {name: [[one.seconds for one in pair] for pair in pairs] for name, pairs in rounds.items()},
    }
    return _ratios(rounds, f"{disk.num_bytes / 1e9:.2f} GB, {num_io_threads()} threads; {ways}"), detail


def _ratios(rounds: dict[str, list[Round]], reason: str) -> list[Measured]:
    found = []
    for other in ("disk", "dcp"):
        for at, verb in enumerate(_VERBS):
            samples = [a[at].seconds / b[at].seconds for a, b in zip(rounds[other], rounds["ours"], strict=True)]
            bound = _median(rounds["dcp"], at) / _median(rounds["disk"], at)
            limit = f"; the disk alone is {bound:.2f} times as fast as it" if other == "dcp" else ""
            found.append(Measured(name=f"{verb}_vs_{other}", unit="", samples=samples, reason=reason + limit))
    return found


def _rates(num_bytes: int, pairs: list[Round]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for at, verb in enumerate(("write", "read")):
        rates[f"{verb}_mb_s"] = round(num_bytes / 1e6 / _median(pairs, at))
        rates[f"{verb}_cpu_s_per_gb"] = round(statistics.median(pair[at].cpu_s for pair in pairs) / num_bytes * 1e9, 3)
    return rates


def _bounds(rounds: dict[str, list[Round]], num_bytes: int, work: dict[str, float]) -> dict[str, Any]:
    """Return the rates of the parts of a save and of a restore alone, and what they allow beside each other."""
    disk = [num_bytes / _median(rounds["disk"], at) for at in (0, 1)]
    save = with_overlap(disk[0], work["gather"], work["save_hashes"])
    read = with_overlap(disk[1], work["read_hashes"], work["scatter"])
    return {
        "work_mb_s": {name: round(rate / 1e6) for name, rate in work.items()},
        "save_vs_disk": round(save / disk[0], 3),
        "read_vs_disk": round(read / disk[1], 3),
        "save_vs_dcp": round(save * _median(rounds["dcp"], 0) / num_bytes, 3),
        "read_vs_dcp": round(read * _median(rounds["dcp"], 1) / num_bytes, 3),
    }


def _median(pairs: list[Round], at: int) -> float:
    return statistics.median(pair[at].seconds for pair in pairs)


def _check(party: Ours | Theirs, model: nn.Module, workload: dict[str, Any], num_rows: int) -> None:
    party.save()
    forget(model)
    party.restore()
    if not has_its_bits(model, workload, num_rows):
        raise ThresholdMissed(f"{party.name}: a restore brought other rows than were saved")
