"""A generated input file: written once under its final name, whoever of several processes comes first."""

from __future__ import annotations

import fcntl
import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ett.os_failure import os_failure
from ett.trainer.data.config import GenerateConfig
from ett.trainer.data.generator import GENERATOR_VERSION, criteo_lines
from ett.trainer.data.sequence_generator import NUM_ITEMS, sequence_tables


def ensure_generated(config: GenerateConfig, folder: Path, format_name: str = "criteo") -> Path:
    """Return the generated file of config in `folder`, made if it is not there; safe to call from every rank."""
    name = f"{format_name}-v{GENERATOR_VERSION}-{config.rows}-rows-seed-{config.seed}"
    if format_name == "criteo":
        path = folder / f"{name}.tsv"
    else:
        path = folder / f"{name}-{config.items}-items-{config.max_length}-long.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return path
    with (folder / f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the kernel if its holder dies
        for abandoned in folder.glob(f".{path.name}.*.tmp"):  # of a process that died; nobody writes without the lock
            abandoned.unlink()
        if not path.exists():
            if format_name == "criteo":
                write_criteo(path, config.rows, config.seed)
            else:
                write_sequence(path, config.rows, config.seed, max_length=config.max_length, items=config.items)
    return path


def write_criteo(path: Path, rows: int, seed: int, *, packed: bool = False) -> int:
    """Write a file of Criteo lines under a temporary name, then give it its name; return its size in bytes.

    Raises: AccessDenied: the folder refuses it; Unreachable: it is full. Nothing is left behind.
    """
    with _named_when_whole(path) as unfinished, unfinished.open("wb") as raw:
        if packed:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0) as stream:
                _write(stream, rows, seed)
        else:
            _write(raw, rows, seed)
    return path.stat().st_size


def write_sequence(path: Path, rows: int, seed: int, *, max_length: int, items: int = NUM_ITEMS) -> int:
    """Write a Parquet file of histories like `write_criteo`. Raises: ConfigError: there is no pyarrow."""
    from ett.trainer.data.parquet_source import pyarrow_parquet

    parquet = pyarrow_parquet(str(path))
    with _named_when_whole(path) as unfinished:
        writer = None
        for table in sequence_tables(rows, seed, max_length=max_length, items=items):
            writer = writer or parquet.ParquetWriter(unfinished, table.schema, compression="zstd")
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return path.stat().st_size


@contextmanager
def _named_when_whole(path: Path) -> Iterator[Path]:
    """Give a name to write under, which becomes `path` after the block; nothing is left behind by one that fails."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield unfinished
        unfinished.replace(path)
    except OSError as err:
        raise os_failure(err, path, elsewhere="--out, or $ETT_HOME") from err
    finally:
        unfinished.unlink(missing_ok=True)


def _write(stream: IO[bytes] | gzip.GzipFile, rows: int, seed: int) -> None:
    for chunk in criteo_lines(rows, seed):
        stream.write(chunk)
