"""`s3_vs_plain_parallel_upload`: how fast a commit gets from the buffer to a bucket, beside the same files alone."""

from __future__ import annotations

import statistics
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ett.bench import BenchResult
from ett.checkpoint.bench.seaweed import find_weed, s3_options, seaweed
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.s3_store import CONNECTIONS, PART_BYTES, S3Store
from ett.checkpoint.table import StateSpec, TableRows
from ett.checkpoint.uploader import FILES_AT_ONCE
from ett.checkpoint.verify import verify_commit
from ett.figures import FIGURES, Measured

NAME = "s3_vs_plain_parallel_upload"
_WORKLOAD = FIGURES.parent / "workloads" / "store_s3.toml"


def upload_figure(quick: bool, path: Path = _WORKLOAD) -> tuple[Measured, dict[str, Any]]:
    """Return the figure and its detail; what was uploaded is read back and verified first. Raises: CorruptState."""
    if find_weed() is None:
        return Measured(name=NAME, unit="", reason="there is no S3 server here: make peers"), {}
    workload = tomllib.loads(path.read_text())
    with tempfile.TemporaryDirectory(prefix=".ett-bench-s3-", dir=".") as name:
        folder = Path(name).absolute()
        with seaweed(folder / "server") as (url, _):
            return _by_turns(workload, folder, url, quick)


def run(quick: bool) -> BenchResult:
    """Measure this figure alone."""
    figure, detail = upload_figure(quick)
    return BenchResult(figures=[figure], detail=detail)


def _by_turns(workload: dict[str, Any], folder: Path, url: str, quick: bool) -> tuple[Measured, dict[str, Any]]:
    store = S3Store("s3://bench/job", options=s3_options(url))
    store.client.run(lambda: store.client.request("create_bucket"))
    model = nn.ModuleList(
        _Table(f"table{n}", workload["dim"], workload["quick_rows" if quick else "rows"])
        for n in range(workload["tables"])
    )
    record = _Uploads()
    config = CheckpointConfig(uri="s3://bench/job", buffer_dir=str(folder / "buffer"), keep_last=1)
    checkpointer = Checkpointer(config, model=model, run=record, store=store)
    checkpointer.restore()
    tier = checkpointer._tier
    assert tier is not None
    plain: list[float] = []
    cpu: dict[str, list[float]] = {"ours": [], "plain": []}
    rounds = workload["quick_rounds" if quick else "rounds"]
    for number in range(1, rounds + 2):  # the first is not counted: sessions and the server's volumes are made
        commit = checkpointer.save(number, number)
        busy_s = time.process_time()
        tier.uploader.drain()
        cpu["ours"].append(time.process_time() - busy_s)
        tier.report()
        files = [tier.local.root / file.path for file in commit.stored_files()]
        busy_s, began = time.process_time(), time.perf_counter()
        _send_plainly(store, files)
        plain.append(time.perf_counter() - began)
        cpu["plain"].append(time.process_time() - busy_s)
    verify_commit(store, CommitLog(store).read(commit.seq), "load")
    checkpointer.close()
    gb = commit.num_bytes / 1e9
    ratios = [theirs / ours for theirs, ours in zip(plain[1:], record.seconds[1:], strict=True)]
    reason = f"{gb:.2f} GB in {len(files)} files, {CONNECTIONS} parts of {PART_BYTES >> 20} MiB at once, SeaweedFS"
    detail = {
        "ours_mb_s": round(1e3 * gb / statistics.median(record.seconds[1:]), 1),
        "plain_mb_s": round(1e3 * gb / statistics.median(plain[1:]), 1),
        "ours_client_cpu_s_per_gb": round(statistics.median(cpu["ours"][1:]) / gb, 2),
        "plain_client_cpu_s_per_gb": round(statistics.median(cpu["plain"][1:]) / gb, 2),
    }
    return Measured(name=NAME, unit="", samples=ratios, reason=reason), {"s3": detail}


def _send_plainly(store: S3Store, files: list[Path]) -> None:
    """What a good script does: s3fs's put_file on several threads, in parts; nothing is checked or conditional."""
    system = store.client._filesystem()
    at_once = max(1, CONNECTIONS // FILES_AT_ONCE)

    def send(path: Path) -> None:
        system.put_file(str(path), f"bench/plain/{path.name}", chunksize=PART_BYTES, max_concurrency=at_once)

    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(send, files))


class _Table(nn.Module):
    """Rows 0 to n - 1 of random bits."""

    def __init__(self, name: str, dim: int, num_rows: int) -> None:
        super().__init__()
        self.name, self.dim, self.weight_dtype = name, dim, "float32"
        self.states: tuple[StateSpec, ...] = ()
        self.rows = TableRows(ids=torch.arange(num_rows), weights=torch.randn(num_rows, dim), states={})

    def clear(self) -> None:
        self.rows = TableRows(ids=torch.empty(0, dtype=torch.int64), weights=torch.empty(0, self.dim), states={})

    def owned(self, ids: Tensor) -> Tensor:
        return torch.ones_like(ids, dtype=torch.bool)

    def export_rows(self) -> TableRows:
        return self.rows

    def import_rows(self, rows: TableRows) -> None:
        self.rows = rows


class _Uploads:
    """A run that notes how long uploads took."""

    job, job_dir = "bench", None

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def span(self, name: str, blocking: bool = True) -> Iterator[None]:
        yield

    def restored(self, step: int, cursor: int, **fields: Any) -> None:
        return

    def ckpt_begin(self, ckpt_id: str, step: int, cursor: int) -> None:
        return

    def committed(self, step: int, cursor: int, uri: str, **fields: Any) -> None:
        return

    def emit(self, ev: str, **fields: Any) -> None:
        if ev == "ckpt_upload":
            self.seconds.append(fields["seconds"])

    def at(self, point: str, step: int) -> None:
        return
