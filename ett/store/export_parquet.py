"""Jobs' records as one Parquet table with typed columns (`pip install 'ett[parquet]'`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from ett.errors import ConfigError
from ett.store.log_lines import read_lines

TEXTS = ("ev", "src", "host", "boot")
INTEGERS = (
    "v", "att", "gen", "rank", "pid", "seq", "wall_ns", "mono_ns", "step", "b_mono", "e_mono", "c0", "c1", "samples",
    "world",
)  # fmt: skip
_ROWS_AT_ONCE = 65_536
_INT64 = 1 << 63


def write_parquet(file: BinaryIO, jobs: Iterable[tuple[str, Iterable[tuple[str, bytes]]]]) -> int:
    """Write every record of the jobs' files and return how many there are.

    Columns: job, file, those of TEXTS and INTEGERS, and `data`: what else the record holds, as JSON. A value that its
    column cannot hold (a fraction, an integer beyond 64 bits) stands in `data`, so nothing is lost.
    Raises: ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as err:
        raise ConfigError("Parquet needs pyarrow, which is not installed", do="pip install 'ett[parquet]'") from err
    names = ("job", "file", *TEXTS, *INTEGERS, "data")
    types = {name: pa.int64() for name in INTEGERS}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    num = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in _batches(_rows(jobs)):
            columns = [[row.get(name) for row in rows] for name in names]
            writer.write_table(pa.table(dict(zip(names, columns, strict=True)), schema=schema))
            num += len(rows)
    return num


def _rows(jobs: Iterable[tuple[str, Iterable[tuple[str, bytes]]]]) -> Iterator[dict[str, Any]]:
    for job, files in jobs:
        for name, data in files:
            lines = read_lines(data[: data.rfind(b"\n") + 1])
            seen: set[int] = set()
            for index, seq in enumerate(lines.seqs):
                if seq is not None and seq not in seen:
                    seen.add(seq)
                    yield _row(job, name, json.loads(lines.body(index)))


def _row(job: str, file: str, record: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"job": job, "file": file}
    for name in INTEGERS:
        if type(value := record.get(name)) is int and -_INT64 <= value < _INT64:
            row[name] = record.pop(name)
    for name in TEXTS:
        if isinstance(value := record.get(name), str) and value.isprintable():
            row[name] = record.pop(name)
    if record.get("job") == job:
        del record["job"]
    row["data"] = json.dumps(record, separators=(",", ":"), sort_keys=True)
    return row


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch
