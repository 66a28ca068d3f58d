"""s3fs beside obstore: time and the client's CPU time for each GB, put and got (ADR 0004).

`python -m ett.checkpoint.bench.s3_clients [URL…]`: against servers that run, else against a SeaweedFS of its own.
obstore is no dependency: `pip install --target .venv/s3 obstore`.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ett.checkpoint.bench.seaweed import KEYS, s3_options, seaweed
from ett.checkpoint.s3_store import CONNECTIONS, PART_BYTES, S3Store

FILE_BYTES = 128 << 20
ROUNDS = 7


def measure(url: str, file: Path) -> dict[str, dict[str, float]]:
    """Return seconds and CPU seconds a GB of each client, medians of ROUNDS by turns. Raises: ValueError."""
    bucket = f"clients-{uuid4().hex[:8]}"
    ours = S3Store(f"s3://{bucket}", options=s3_options(url))
    ours.client.run(lambda: ours.client.request("create_bucket"))
    obstore: Any = importlib.import_module("obstore")
    theirs = importlib.import_module("obstore.store").S3Store(
        bucket,
        endpoint=url,
        access_key_id=KEYS["key"],
        secret_access_key=KEYS["secret"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    target = np.empty(FILE_BYTES, np.uint8)
    starts = list(range(0, FILE_BYTES, PART_BYTES))

    def put_theirs(name: str) -> None:
        obstore.put(theirs, name, file, mode="create", chunk_size=PART_BYTES, max_concurrency=CONNECTIONS)

    def get_theirs(name: str) -> None:
        parts = obstore.get_ranges(theirs, name, starts=starts, lengths=[PART_BYTES] * len(starts))
        for start, part in zip(starts, parts, strict=True):
            target[start : start + PART_BYTES] = np.frombuffer(part, np.uint8)

    actions: dict[str, tuple[Callable[[str], None], Callable[[str], object]]] = {
        "s3fs": (lambda name: ours.put_file(name, file, "h"), lambda name: ours.read_range(name, 0, target.data)),
        "obstore": (put_theirs, get_theirs),
    }
    samples: dict[str, list[tuple[float, ...]]] = {name: [] for name in actions}
    expected = np.fromfile(file, np.uint8)
    for number in range(ROUNDS + 1):
        for client, (put, get) in actions.items():
            target.fill(0)
            name = f"{client}-{number}"
            put_cost, get_cost = _cost(put, name), _cost(get, name)
            if not (target == expected).all():
                raise ValueError(f"{client} brought other bytes")
            ours.delete(name)
            if number:  # the first makes sessions and the server's volumes
                samples[client].append((*put_cost, *get_cost))
    fields = ("put_s", "put_cpu_s", "get_s", "get_cpu_s")
    gb = FILE_BYTES / 1e9
    return {
        client: {field: round(statistics.median(row[n] for row in rows) / gb, 2) for n, field in enumerate(fields)}
        for client, rows in samples.items()
    }


def _cost(action: Callable[[str], object], name: str) -> tuple[float, float]:
    busy_s, began = time.process_time(), time.perf_counter()
    action(name)
    return time.perf_counter() - began, time.process_time() - busy_s


def main() -> None:
    sys.path.append(str(Path(sys.prefix) / "s3"))
    with tempfile.TemporaryDirectory(prefix=".ett-bench-s3-", dir=".") as name:
        folder = Path(name).absolute()
        file = folder / "file"
        file.write_bytes(np.random.default_rng(0).bytes(FILE_BYTES))
        if sys.argv[1:]:
            found = {url: measure(url, file) for url in sys.argv[1:]}
        else:
            with seaweed(folder / "server") as (url, _):
                found = {"SeaweedFS": measure(url, file)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
