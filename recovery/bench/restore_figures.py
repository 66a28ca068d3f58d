"""The figures of restores: beside the disk alone, beside one connection at a time, and over many checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ett.checkpoint.bench.bench_disk import WAYS, Disk, drop_from_cache
from ett.checkpoint.bench.spent import Spent, check_moved
from ett.checkpoint.store import Store, open_store
from ett.figures import Measured
from ett.recovery.bench.capped_restores import capped_figures
from ett.recovery.bench.restore_bench import OURS, Detail, Reader, RestoreBench, Say
from ett.recovery.bench.zipf_job import HeldCommit


def restore_figures(workload: Mapping[str, Any], quick: bool, say: Say) -> tuple[list[Measured], Detail]:
    """Measure restores on the disk of the current folder. Raises: ThresholdMissed: one brought other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the product does by default
    figures: list[Measured] = []
    detail: Detail = {}
    try:
        for name, part in (("disk", _beside_the_disk), ("capped", capped_figures), ("growth", _growth)):
            with tempfile.TemporaryDirectory(prefix=".ett-bench-recovery-", dir=".") as folder:
                bench = RestoreBench(
                    Path(folder).absolute(), workload["restore"], workload["restore"][name], quick, say
                )
                found, detail[f"restore_{name}"] = part(bench)
                figures += found
    finally:
        torch.set_num_threads(threads)
    return figures, detail


def _beside_the_disk(bench: RestoreBench) -> tuple[list[Measured], Detail]:
    job = bench.job(OURS)
    for _ in range(bench.plan["checkpoints"]):
        job.checkpoint()
    held, store = job.hold(bench.folder / "held"), open_store(str(bench.folder / "held"))
    job.close()
    reader = Reader(bench.model())
    reader.check("the disk's", held, store)
    bench.say(f"a restore of {held.num_table_bytes / 1e9:.2f} GB from this disk brings every bit")
    disk = Disk(bench.folder / "disk", held.num_table_bytes)
    alone = {way: (disk.write_s(way), disk.read_s(way))[1] for way in WAYS}
    way = min(alone, key=lambda name: alone[name])
    pairs = []
    for number in range(bench.sized("rounds")):
        turns: list[Callable[[], Spent]] = [lambda: disk.read(way), lambda: _cold(reader, held, store)]
        taken = [turn() for turn in (turns if number % 2 == 0 else turns[::-1])]
        pairs.append(tuple(taken if number % 2 == 0 else taken[::-1]))
    read_bytes = [pair[1].read_bytes for pair in pairs]
    # Rows of which a later file has a newer version are not all read: the rates are of what came from the disk.
    ratios = [theirs.seconds / disk.num_bytes * ours.read_bytes / ours.seconds for theirs, ours in pairs]
    check_moved("disk", min(pair[0].read_bytes for pair in pairs), disk.num_bytes)
    check_moved("restore", min(read_bytes), held.commit.num_bytes - _dead_bytes(held))
    reason = f"{held.num_table_bytes / 1e9:.2f} GB in {len(held.commit.stored_files())} files, cold; disk: {way} reads"
    detail = {
        "disk_mb_s": [round(disk.num_bytes / 1e6 / pair[0].seconds) for pair in pairs],
        "restore_mb_s": [round(pair[1].read_bytes / 1e6 / pair[1].seconds) for pair in pairs],
        "restore_cpu_s_per_gb": [round(pair[1].cpu_s / pair[1].read_bytes * 1e9, 3) for pair in pairs],
    }
    return [Measured(name="restore_vs_disk", unit="", samples=ratios, reason=reason)], detail


def _dead_bytes(held: HeldCommit) -> int:
    """Return how much of a commit's files no restore has to read, at most."""
    live = sum(table.num_rows * table.spec.row_bytes for table in held.commit.tables)
    return max(0, held.num_table_bytes - live)


def _cold(reader: Reader, held: HeldCommit, store: Store) -> Spent:
    drop_from_cache(held.folder)
    return reader.restore(store)


def _growth(bench: RestoreBench) -> tuple[list[Measured], Detail]:
    job, plan = bench.job(OURS), bench.plan
    base_bytes, listed, held = job.model.num_table_bytes, [], {}
    for number in range(1, plan["checkpoints"] + 1):
        commit = job.checkpoint()
        listed.append(sum(table.num_bytes for table in commit.tables) / base_bytes)
        if number in (plan["first"], plan["checkpoints"]):
            held[number] = job.hold(bench.folder / f"held-{number}")
    job.close()
    reader = Reader(bench.model())
    stores = {number: open_store(str(each.folder)) for number, each in held.items()}
    for number, each in held.items():
        reader.check(f"checkpoint {number}", each, stores[number])
    bench.say(f"restores after {' and '.join(map(str, held))} checkpoints bring every bit")
    took: dict[int, list[Spent]] = {number: [] for number in held}
    for turn in range(bench.sized("rounds")):
        for number in list(held)[:: -1 if turn % 2 else 1]:
            took[number].append(_cold(reader, held[number], stores[number]))
    early, late = took[plan["first"]], took[plan["checkpoints"]]
    samples = [after.seconds / before.seconds for before, after in zip(early, late, strict=True)]
    grown = Measured(
        name="restore_growth_10_to_200_checkpoints",
        unit="",
        samples=samples,
        reason=f"seconds after {plan['checkpoints']} over those after {plan['first']}, {base_bytes / 1e9:.2f} GB, cold",
    )
    worst = max(listed)
    live = Measured(
        name="live_bytes_vs_base",
        unit="",
        samples=[worst],
        reason=f"checkpoint.max_live = {bench.recipe['max_live']}; bytes that a commit lists of tables, the most of "
        f"{len(listed)}: of commit {listed.index(worst) + 1}",
    )
    detail = {
        "seconds": {number: [round(one.seconds, 3) for one in taken] for number, taken in took.items()},
        "read_mb": {number: round(taken[0].read_bytes / 1e6) for number, taken in took.items()},
        "listed_over_base": [round(value, 3) for value in listed],
    }
    return [grown, live], detail
