"""torch.distributed.checkpoint, which benchmarks compare with.

In one process with as many threads as ours, files flushed; and as it is, by all ranks of a job.
"""

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


def dcp_save_by_ranks(state: State, folder: Path) -> None:
    """Every rank of the process group calls; tensors of one name are one tensor, which one of them writes."""
    from torch.distributed.checkpoint.state_dict_saver import save

    save(state, checkpoint_id=folder)


def dcp_load_by_ranks(state: State, folder: Path) -> None:
    """Every rank of the process group calls with the tensors that it wants."""
    from torch.distributed.checkpoint.state_dict_loader import load

    load(state, checkpoint_id=folder)


def dcp_lengths(folder: Path) -> dict[str, int]:
    """Return how long each tensor is in its first dimension, of those that have one, by the names in the files."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    kept = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: k.size[0] for name, k in kept.items() if isinstance(k, TensorStorageMetadata) and k.size}


def _writer(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    return FileSystemWriter(folder, thread_count=num_io_threads(), sync_files=True)
