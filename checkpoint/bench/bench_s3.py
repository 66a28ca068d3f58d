"""`s3_vs_plain_parallel_upload`: how fast a commit gets from the buffer to a bucket, beside the same files alone."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ett.checkpoint.bench.bench_disk import drop_from_cache
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.bench_tables import bench_model
from ett.checkpoint.bench.seaweed import find_weed, s3_options, seaweed
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.s3_store import CONNECTIONS, PART_BYTES, S3Store
from ett.checkpoint.uploader import FILES_AT_ONCE
from ett.checkpoint.verify import verify_commit
from ett.figures import Measured

NAME = "s3_vs_plain_parallel_upload"


def upload_figure(workload: dict[str, Any], folder: Path, quick: bool) -> tuple[Measured, dict[str, Any]]:
    """Return the figure and its detail; the last upload is read back and verified. Raises: CorruptState."""
    if find_weed() is None:
        return Measured(name=NAME, unit="", reason="there is no S3 server here: make peers"), {}
    with seaweed(folder / "server") as (url, _):
        store = S3Store("s3://bench/job", options=s3_options(url))
        store.client.run(lambda: store.client.request("create_bucket"))
        return _by_turns(workload, folder, store, quick)


def _by_turns(workload: dict[str, Any], folder: Path, store: S3Store, quick: bool) -> tuple[Measured, dict[str, Any]]:
    model = bench_model(workload["tables"], workload["s3"]["quick_rows" if quick else "rows"])
    record = _Uploads()
    buffer = str(folder / "buffer")
    config = CheckpointConfig(uri=store.uri, buffer_dir=buffer, keep_last=1, policy="full", background=False)
    checkpointer = Checkpointer(config, model=model, run=record, store=store)
    checkpointer.restore()
    tier = checkpointer._tier
    assert tier is not None
    plain_s: list[float] = []
    cpu_s: list[tuple[float, float]] = []
    # One round more, which is not counted: sessions and the server's volumes are made in it.
    for number in range(1, workload["s3"]["quick_rounds" if quick else "rounds"] + 2):
        commit = checkpointer.save(number, number)
        first_s = time.process_time()
        tier.uploader.drain()
        second_s = time.process_time()
        tier.report()
        files = [tier.local.root / file.path for file in commit.stored_files()]
        drop_from_cache(tier.local.root)  # ours found nothing there either: saves are written past it
        began = time.perf_counter()
        _send_plainly(store, files)
        plain_s.append(time.perf_counter() - began)
        cpu_s.append((second_s - first_s, time.process_time() - second_s))
    verify_commit(store, CommitLog(store).read(commit.seq), "load")
    checkpointer.close()
    gb = commit.num_bytes / 1e9
    detail = {
        "s3_ours_mb_s": 1e3 * gb / statistics.median(record.seconds[1:]),
        "s3_plain_mb_s": 1e3 * gb / statistics.median(plain_s[1:]),
        "s3_ours_cpu_s_per_gb": statistics.median(ours for ours, _ in cpu_s[1:]) / gb,
        "s3_plain_cpu_s_per_gb": statistics.median(plain for _, plain in cpu_s[1:]) / gb,
    }
    ratios = [plain / ours for plain, ours in zip(plain_s[1:], record.seconds[1:], strict=True)]
    reason = f"{gb:.2f} GB in {len(files)} files, {CONNECTIONS} parts of {PART_BYTES >> 20} MiB at once, SeaweedFS"
    figure = Measured(name=NAME, unit="", samples=ratios, reason=reason)
    return figure, {name: round(value, 2) for name, value in detail.items()}


def _send_plainly(store: S3Store, files: list[Path]) -> None:
    """What a good script does: s3fs's put_file on several threads, in parts; nothing is checked or conditional."""
    system = store.client._filesystem()
    parts_at_once = max(1, CONNECTIONS // FILES_AT_ONCE)

    def send(path: Path) -> None:
        system.put_file(str(path), f"bench/plain/{path.name}", chunksize=PART_BYTES, max_concurrency=parts_at_once)

    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        list(pool.map(send, files))


class _Uploads(QuietRun):
    """Notes how long uploads took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def emit(self, ev: str, **fields: Any) -> None:
        if ev == "ckpt_upload":
            self.seconds.append(fields["seconds"])
