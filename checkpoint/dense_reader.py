"""The dense state read back, of either form: every file that is read is verified, and no pickle is opened.

A rank reads the files that have something of its parts, each once, front to back, and takes its parts on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ett.checkpoint.buffer_pool import BufferPool, Bytes
from ett.checkpoint.dense_document import Chunk, DenseTensor, parse_document
from ett.checkpoint.dense_entry import DOCUMENT_NAME, DenseEntry, dense_folder
from ett.checkpoint.dense_files import Run, read_runs
from ett.checkpoint.dense_segment import read_dense_segment
from ett.checkpoint.restore_checks import read_whole
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.sharded_tensor import Box, local_box, sharded_like
from ett.checkpoint.store import Store
from ett.checkpoint.tensor_bytes import TORCH_DTYPES, new_tensor, tensor_memory
from ett.checkpoint.worker_threads import in_threads, num_io_threads
from ett.errors import CorruptState

Like = Callable[[str, tuple[int, ...]], "Tensor | None"]


def read_dense(
    store: Store,
    dense: DenseEntry,
    like: Like = lambda name, shape: None,
    reads: int | None = None,
    is_broken_off: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the tree, every byte verified.

    Args: like: the sharded tensor that is wanted for a name and shape, of which this rank's part alone is then read and
        returned, sharded alike; None: the whole tensor is. reads: files that are read at once; None: one a thread.
        is_broken_off: asked before each piece of a file whether it is wanted still.
    Raises: CorruptState: a file is missing or altered; names it. BrokenOffError: nothing is wanted any more.
    """
    if dense.dcp_version is None:
        return read_dense_segment(store, dense.files[0].stored, dense.identity)
    stored, folder = dense.named(DOCUMENT_NAME), dense_folder(dense.identity)
    tensors, tree = parse_document(read_whole(store, stored), dense.identity, stored.path)
    plan = _Plan(folder)
    found = {tensor.name: plan.add(tensor, like(tensor.name, tensor.shape)) for tensor in tensors}
    wanted = [file.stored for file in dense.files if file.stored.path in plan.runs]
    if len(wanted) != len(plan.runs):
        raise CorruptState(f"dense state: {stored.path} names files that the commit does not list")
    buffers = BufferPool()

    def read(file: StoredFile) -> None:
        read_runs(store, file, plan.runs[file.path], buffers, is_broken_off)

    in_threads(wanted, read, reads or num_io_threads())
    plan.put_boxes()
    return {name: wrap() for name, wrap in found.items()}, tree


class _Plan:
    """Which runs of which files go where."""

    def __init__(self, folder: str) -> None:
        self.runs: dict[str, list[Run]] = {}
        self._folder = folder
        self._boxes: list[Callable[[], object]] = []

    def add(self, tensor: DenseTensor, like: Tensor | None) -> Callable[[], Tensor]:
        """Return what gives the tensor when all runs have been read."""
        whole = Box(tensor.shape, (0,) * len(tensor.shape), tensor.shape)
        box = whole if like is None else local_box(like)
        values = new_tensor(box.sizes, TORCH_DTYPES[tensor.dtype])
        covered = sum(self._add_chunk(tensor, chunk, box, values) for chunk in tensor.chunks)
        if covered != values.numel():
            raise CorruptState(f"dense state: {tensor.name} has {covered} of {values.numel()} elements")
        return lambda: values if like is None else sharded_like(values, like)

    def put_boxes(self) -> None:
        for put in self._boxes:
            put()

    def _add_chunk(self, tensor: DenseTensor, chunk: Chunk, box: Box, values: Tensor) -> int:
        """Return how many elements of the box are in a chunk."""
        ends = [
            min(a + n, b + m) for a, n, b, m in zip(chunk.offsets, chunk.sizes, box.offsets, box.sizes, strict=True)
        ]
        starts = [max(a, b) for a, b in zip(chunk.offsets, box.offsets, strict=True)]
        sizes = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
        num = int(np.prod(sizes, dtype=np.int64))
        if not num:
            return 0
        theirs = tuple(slice(s - a, s - a + n) for s, a, n in zip(starts, chunk.offsets, sizes, strict=True))
        ours = tuple(slice(s - b, s - b + n) for s, b, n in zip(starts, box.offsets, sizes, strict=True))
        if tuple(sizes[1:]) == chunk.sizes[1:] == box.sizes[1:]:  # whole rows of both
            row_bytes = chunk.num_bytes // chunk.sizes[0] if sizes else 0
            skipped = theirs[0].start * row_bytes if sizes else 0
            self._run(chunk, chunk.at + skipped, tensor_memory(values[ours[:1]] if sizes else values))
            return num
        read = torch.empty(chunk.sizes, dtype=values.dtype)
        self._run(chunk, chunk.at, tensor_memory(read))
        self._boxes.append(lambda: values[ours].copy_(read[theirs]))
        return num

    def _run(self, chunk: Chunk, at: int, target: Bytes) -> None:
        self.runs.setdefault(f"{self._folder}/{chunk.file}", []).append(Run(at, target))
