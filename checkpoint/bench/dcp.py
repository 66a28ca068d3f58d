"""torch.distributed.checkpoint, which benchmarks compare with: in one process, with as many threads, files flushed."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ett.checkpoint.worker_threads import num_io_threads

State = dict[str, Any]  # of tensors, or of such


def dcp_stager() -> Any:
    """Return what copies tensors for an asynchronous save, to memory that it uses again; whoever has it closes it."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(StagingOptions(False, False, False, False))


def dcp_save(state: State, folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    save(state, storage_writer=_writer(folder), no_dist=True)


def dcp_async_save(state: State, folder: Path, stager: Any) -> Future[Any]:
    """Return when tensors may change."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    running = async_save(state, storage_writer=_writer(folder), async_stager=stager, no_dist=True)
    assert isinstance(running, Future)
    return running


def dcp_load(state: State, folder: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    load(state, storage_reader=FileSystemReader(folder), no_dist=True)


def _writer(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    return FileSystemWriter(folder, thread_count=num_io_threads(), sync_files=True)
