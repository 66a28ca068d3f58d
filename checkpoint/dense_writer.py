"""The dense state written by torch.distributed.checkpoint into a new folder of a store; imports it: half a second.

Torch's writer threads print what they raise, and torch then reports success (pytorch #191391). Here no stream raises:
the first failure is kept, nothing is stored any more, and when all threads have ended it is raised; rank 0 counts all
results against the plan besides.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch.distributed as dist
import xxhash
from torch import Size
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, FileSystemBase, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ett.checkpoint.dense_digest import box_sum
from ett.checkpoint.dense_document import Chunk
from ett.checkpoint.lost_peer import peers_named
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.staging_area import StagedPart
from ett.checkpoint.store import Store
from ett.checkpoint.tensor_bytes import dtype_name
from ett.checkpoint.worker_threads import num_io_threads
from ett.errors import EttError, Unreachable
from ett.os_failure import os_failure
from ett.raised import raised_by

DCP_VERSION = CURRENT_DCP_VERSION
FILE_BYTES = 64 << 20  # a rank's share is written as several files at once where it is larger
TOGETHER_BYTES = 1 << 20  # smaller writes are put together
_ALL = "parts"
# One process needs no process group; torch says so at every save.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenPart:
    """A box that this rank has written: where it is, and what it adds to the tensor's digest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunk: Chunk
    digest_sum: int


def write_parts(
    store: Store, folder: str, parts: Mapping[str, StagedPart], group: dist.ProcessGroup | None, names: list[str]
) -> tuple[list[WrittenPart], list[StoredFile]]:
    """Write this rank's share of the tensors' parts, rank 0 also torch's metadata. With a group, all its ranks call.

    Args: parts: of a box that several ranks have, the lowest one's is written. group: the engine's own, of gloo.
        names: gets the names that are being written, for whoever has to remove them.
    Raises: what the store raised, on every rank; Unreachable: torch wrote less than it had planned. LostPeer.
    """
    target = _StoreFolder(store, folder, parts, names)
    writer = _Writer(target)
    try:
        with peers_named():
            save({_ALL: parts}, storage_writer=writer, planner=_Planner(), process_group=group, no_dist=group is None)
    except CheckpointException as err:
        if target.failure is not None:
            raise _typed(target.failure, folder) from err
        rank, (cause, _) = min(err.failures.items())
        raise _typed(cause, f"{folder} of rank {rank}") from err
    return writer.written, sorted(target.stored, key=lambda file: file.path)


def _typed(err: BaseException, where: str) -> BaseException:
    if isinstance(err, OSError):
        return os_failure(err, where, elsewhere="checkpoint.uri")
    if isinstance(err, EttError) or not isinstance(err, Exception):
        return err
    return Unreachable(f"{where} was not written: {type(err).__name__}: {err}", code="S003")


class _Planner(DefaultSavePlanner):
    """Plans staged parts as they are: flat names, one box each. They come under one name, for torch logs each."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True)

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict[_ALL], storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_item(name, part) for name, part in self.state_dict.items() if _is_there(part)])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].values


def _is_there(part: StagedPart) -> bool:
    """Return whether there is something to write: of an empty tensor its name, of another no empty part."""
    return part.values.numel() > 0 or 0 in part.box.shape


def _item(name: str, part: StagedPart) -> WriteItem:
    box = part.box
    properties = TensorProperties(dtype=part.values.dtype)
    chunk = ChunkStorageMetadata(offsets=Size(box.offsets), sizes=Size(box.sizes))
    return WriteItem(
        index=MetadataIndex(name, box.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=Size(box.shape)),
    )


class _Writer(FileSystemWriter):
    def __init__(self, folder: _StoreFolder) -> None:
        super().__init__(folder.name, sync_files=False, per_thread_copy_ahead=0, overwrite=False)
        self.fs: FileSystemBase = folder  # type: ignore[assignment]  # torch's own writers to other stores do so
        self._folder = folder
        self.written: list[WrittenPart] = []

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self._folder.name)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        if plan.items:
            wanted = -(-sum(item.tensor_storage_size() or 0 for item in plan.items) // FILE_BYTES)
            self.thread_count = min(max(1, wanted), num_io_threads(), len(plan.items))
            results = super().write_data(plan, planner).wait()
            self._folder.check()
        self.written = [self._folder.written(result) for result in results]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        planned = {
            MetadataIndex(name, chunk.offsets)
            for name, tensor in metadata.state_dict_metadata.items()
            for chunk in getattr(tensor, "chunks", ())
        }
        _count(planned, [result.index for written in results for result in written], self._folder.name)
        super().finish(metadata, results)
        self._folder.check()


def _count(planned: set[MetadataIndex], written: list[MetadataIndex], folder: str) -> None:
    if len(written) != len(planned) or set(written) != planned:
        raise Unreachable(f"{len(written)} of {len(planned)} planned parts of {folder} were written", code="S003")


class _StoreFolder(FileSystemBase):
    """A new folder of a store as torch's writer sees it; any thread may write."""

    def __init__(self, store: Store, name: str, parts: Mapping[str, StagedPart], names: list[str]) -> None:
        self.store, self.name, self.names = store, name, names
        self.stored: list[StoredFile] = []
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        self._parts = parts
        self._by_address = {part.values.data_ptr(): name for name, part in parts.items() if part.values.numel()}
        self._places: dict[str, tuple[int, int]] = {}  # of a part: where in its file, and its share of the digest

    def check(self) -> None:
        """Raise the first failure."""
        if self.failure is not None:
            raise self.failure

    def failed(self, err: BaseException) -> None:
        """Keep the first failure, in the store's words where it has any: it knows what the system's error means."""
        with self._lock:
            if self.failure is None or err.__cause__ is self.failure:
                self.failure = err

    def comes(self, data: memoryview, at: int) -> None:
        """Learn that these bytes go to `at` of a file: where they are a part's, that is its place."""
        payload = np.frombuffer(data, np.uint8)
        name = self._by_address.get(payload.__array_interface__["data"][0])
        if name is not None and len(payload) == self._parts[name].values.nbytes:
            box = self._parts[name].box
            self._places[name] = (at, box_sum(payload, box.shape, box.offsets, box.sizes))

    def written(self, result: WriteResult) -> WrittenPart:
        name = result.index.fqn
        part = self._parts[name]
        size = part.values.nbytes
        if size and name not in self._places:
            raise Unreachable(f"torch.save has not written {name} from where it lies", code="S003")
        at, digest_sum = self._places.get(name, (0, 0))
        file = result.storage_data.relative_path
        return WrittenPart(
            name=name,
            dtype=dtype_name(part.values, name),
            shape=part.box.shape,
            chunk=Chunk(offsets=part.box.offsets, sizes=part.box.sizes, file=file, at=at, num_bytes=size),
            digest_sum=digest_sum,
        )

    def create_stream(self, path: Any, mode: str) -> Any:
        # The store shows a file when it is whole: a name for the time before that is not needed.
        return _Stream(self, str(path).removesuffix(".tmp"))

    def concat_path(self, path: Any, suffix: str) -> str:
        return str(PurePosixPath(path) / suffix)

    def rename(self, path: Any, new_path: Any) -> None:
        return

    def init_path(self, path: Any) -> Any:
        return path

    def mkdir(self, path: Any) -> None:
        return

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def exists(self, path: Any) -> bool:
        return False  # the folder's name has never been used, and the store refuses a taken one

    def rm_file(self, path: Any) -> None:
        return


class _Stream:
    """A file of the folder, hashed on its way."""

    def __init__(self, folder: _StoreFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._context = folder.store.create_stream(name)
        self._file: BinaryIO | None = None
        self._hasher, self._size = xxhash.xxh3_128(), 0
        self._small = bytearray()  # not yet written: torch.save writes forty times a tensor

    def __enter__(self) -> _Stream:
        if self._folder.failure is None:
            self._folder.names.append(self._name)
            self._try(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if err is not None:
            self._folder.failed(err)
        file = self._file
        if file is None:
            return True
        if self._folder.failure is None:
            self._try(lambda: self._write_small(file))
        failure = self._folder.failure
        kind = None if failure is None else type(failure)
        raised = raised_by(partial(self._context.__exit__, kind, failure, None))
        if raised is not None:
            self._folder.failed(raised)
        if self._folder.failure is None:
            stored = StoredFile(path=self._name, bytes=self._size, xxh3_128=self._hasher.hexdigest())
            self._folder.stored.append(stored)
        return True

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        file = self._file
        if file is not None and self._folder.failure is None:
            self._try(lambda: self._take(file, view))
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        return

    def close(self) -> None:
        return

    def _open(self) -> None:
        self._file = self._context.__enter__()

    def _take(self, file: BinaryIO, data: memoryview) -> None:
        self._folder.comes(data, self._size)
        if len(data) < TOGETHER_BYTES:
            self._small += data
        if len(data) >= TOGETHER_BYTES or len(self._small) >= TOGETHER_BYTES:
            self._write_small(file)
        if len(data) >= TOGETHER_BYTES:
            self._hasher.update(data)
            file.write(data)

    def _write_small(self, file: BinaryIO) -> None:
        together, self._small = bytes(self._small), bytearray()
        self._hasher.update(together)
        if together:
            file.write(together)

    def _try(self, work: Callable[[], object]) -> None:
        failure = raised_by(work)
        if failure is not None:
            self._folder.failed(failure)
