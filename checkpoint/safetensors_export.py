"""One commit as safetensors files: a file for each table, one for the dense state, and an index of all tensors."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.digest import TableDigest, combine
from ett.checkpoint.export import make_destination
from ett.checkpoint.live_rows import live_rows
from ett.checkpoint.pins import leased
from ett.checkpoint.safetensors_file import SafetensorsFile, TensorSpec
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import read_rows
from ett.checkpoint.worker_threads import in_threads, num_io_threads
from ett.errors import ConfigError, CorruptState
from ett.os_failure import os_failure

INDEX_NAME = "model.safetensors.index.json"
DENSE_NAME = "dense.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedTensors:
    path: Path
    files: dict[str, str]  # of every tensor
    num_bytes: int


def export_safetensors(store: Store, commit: Commit, to: Path) -> ExportedTensors:
    """Write a commit's tensors into the new or empty folder `to`, which appears with the last of them.

    A table gives `<table>` [rows, dim], `<table>.ids` int64 [rows], and `<table>.<state>` [rows, width] for each
    optimizer state, all in one order of rows, in bounded memory. The dense state, which every rank holds too, is read
    whole; its tensors keep their names, and what is no tensor is in the file's metadata, as JSON.

    Raises: CorruptState: any byte differs from what was committed. ConfigError: `to` holds something; a tensor's type
        or name does not fit.
    """
    with appearing(to) as folder:
        files = write_safetensors(store, commit, folder, to)
        num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.name != INDEX_NAME)
    return ExportedTensors(path=to, files=files, num_bytes=num_bytes)


def write_safetensors(store: Store, commit: Commit, folder: Path, to: Path) -> dict[str, str]:
    """Write the files into a folder that is there, and return the file of every tensor.

    Args: to: what the folder will be. Raises: as `export_safetensors`.
    """
    files: dict[str, str] = {}
    with leased(store, commit, f"export to {to}"):
        for table in commit.tables:
            _write_table(store, commit, table, folder / f"{table.spec.table_id}.safetensors", files)
        _write_dense(store, commit, folder / DENSE_NAME, files)
    total = sum(path.stat().st_size for path in folder.iterdir())
    with open(folder / INDEX_NAME, "x") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    return files


@contextmanager
def appearing(to: Path) -> Iterator[Path]:
    """Give a folder that becomes `to` when all is written, and is removed otherwise."""
    make_destination(to)
    folder = to.absolute().with_name(f".{to.name}-{uuid.uuid4().hex}")
    folder.mkdir()
    try:
        yield folder
        _sync(folder)
        os.rename(folder, to)  # over the empty folder
        _sync(to.absolute().parent)
    except OSError as err:
        make_destination(to)  # another export may have filled it meanwhile
        raise os_failure(err, to, elsewhere="--to") from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_table(store: Store, commit: Commit, table: TableEntry, path: Path, files: dict[str, str]) -> None:
    spec, chain = table.spec, sorted(table.files, key=lambda file: (file.min_id, file.stored.path))
    names = [spec.name, *(f"{spec.name}.{group.name.removeprefix('state:')}" for group in spec.groups[1:])]
    ids_name = f"{spec.name}.ids"
    tensors = [TensorSpec(ids_name, "int64", (table.num_rows,))]
    tensors += [
        TensorSpec(name, group.dtype, (table.num_rows, group.width))
        for name, group in zip(names, spec.groups, strict=True)
    ]
    _claim(files, [tensor.name for tensor in tensors], path.name)
    buffers = BufferPool()
    metadata = {"format": "pt", "table": spec.name, "step": str(commit.step), "digest": table.digest or ""}
    with live_rows(store, spec, chain) as live:
        if live.num_rows != table.num_rows:
            raise CorruptState(
                f"table {spec.name} has {live.num_rows} rows", expected=f"{table.num_rows}, as were committed"
            )
        starts = np.cumsum([0, *live.counts]).tolist()
        with closing(SafetensorsFile(path, tensors, metadata)) as file:

            def copy(number: int) -> str:
                digest, row = TableDigest(spec.name, spec.groups), starts[number]
                for rows in read_rows(store, spec, chain[number], live.wanted(number), buffers):
                    digest.add(rows.ids, rows.columns)
                    file.write(ids_name, 8 * row, rows.ids.view(np.uint8))
                    for name, column in zip(names, rows.columns, strict=True):
                        file.write(name, row * column.shape[1], column)
                    row += len(rows.ids)
                return digest.hex

            digest = combine(in_threads(range(len(chain)), copy, num_io_threads()))
    if table.digest not in (None, digest):
        raise CorruptState(f"table {spec.name} has the digest {digest}", expected=f"{table.digest}, as was committed")


def _write_dense(store: Store, commit: Commit, path: Path, files: dict[str, str]) -> None:
    from ett.checkpoint.dense_reader import read_dense
    from ett.checkpoint.tensor_bytes import dtype_name, tensor_bytes

    assert commit.dense is not None
    tensors, tree = read_dense(store, commit.dense)
    specs = [TensorSpec(name, dtype_name(value, name), tuple(value.shape)) for name, value in sorted(tensors.items())]
    _claim(files, [tensor.name for tensor in specs], path.name)
    metadata = {"format": "pt", "step": str(commit.step), "cursor": str(commit.cursor), "state": json.dumps(tree)}
    with closing(SafetensorsFile(path, specs, metadata)) as file:
        for spec in specs:
            file.write(spec.name, 0, tensor_bytes(tensors[spec.name]))


def _claim(files: dict[str, str], names: list[str], where: str) -> None:
    for name in names:
        if name in files or name == "__metadata__":
            raise ConfigError(f"two tensors would be named {name}", do="export with --format checkpoint")
        files[name] = where
