"""Whatever boxes a tensor was written as, any box of it is read back, each file once and verified."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ett.checkpoint import dense_files, dense_reader, tensor_bytes
from ett.checkpoint.dense_digest import box_sum, combine_sums, digest_of_whole
from ett.checkpoint.dense_document import Chunk, DenseTensor, document_bytes
from ett.checkpoint.dense_entry import DOCUMENT_NAME, DenseEntry, DenseFile, dense_folder
from ett.checkpoint.dense_reader import read_dense
from ett.checkpoint.file_hash import stored_bytes
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.sharded_tensor import Box
from ett.errors import CorruptState

IDENTITY = SegmentIdentity(ckpt_uuid="e000001-a", seq_parent=1, step=3, table="", kind="dense", writer=0, part=0)


def cuts(length: int, chance: random.Random) -> list[tuple[int, int]]:
    """Return a dimension in parts, of which one may be empty."""
    ends = sorted(chance.randrange(length + 1) for _ in range(chance.randrange(3)))
    return list(zip([0, *ends], [*ends, length], strict=True))


def written(folder: Path, tensors: dict[str, Tensor], chance: random.Random) -> DenseEntry:
    """Write each tensor as boxes that tile it, in any order, with other bytes in between, in one of three files."""
    files = {f"__{rank}_0.distcp": bytearray(chance.randbytes(3)) for rank in range(3)}
    described = []
    for name, tensor in tensors.items():
        boxes, chunks = list(product(*(cuts(length, chance) for length in tensor.shape))), []
        chance.shuffle(boxes)
        sums = []
        for box in boxes:
            part = tensor[tuple(slice(start, end) for start, end in box)].contiguous()
            offsets, sizes = tuple(start for start, _ in box), tuple(part.shape)
            raw, file = tensor_bytes.tensor_bytes(part), chance.choice(sorted(files))
            place = {"file": file, "at": len(files[file]), "num_bytes": part.nbytes}
            chunks.append(Chunk(offsets=offsets, sizes=sizes, **place))  # type: ignore[arg-type]
            sums.append(box_sum(raw, tuple(tensor.shape), offsets, sizes))
            files[file] += raw.tobytes() + chance.randbytes(5)
        dtype = tensor_bytes.dtype_name(tensor, name)
        digest = combine_sums(sums)
        described.append(
            DenseTensor(name=name, dtype=dtype, shape=tuple(tensor.shape), digest=digest, chunks=tuple(chunks))
        )
    contents = {**files, DOCUMENT_NAME: document_bytes(IDENTITY, described, {})}
    stored = [stored_bytes(f"{dense_folder(IDENTITY)}/{name}", bytes(data)) for name, data in contents.items()]
    for file, data in zip(stored, contents.values(), strict=True):
        LocalStore(folder).create(file.path, bytes(data))
    return DenseEntry(
        identity=IDENTITY,
        files=tuple(DenseFile(stored=file, writer=0) for file in stored),
        num_items=len(tensors),
        digest=digest_of_whole(tensors, {}),
        dcp_version="1.0.0",
    )


@pytest.mark.slow
@pytest.mark.parametrize("piece_bytes", [4096, 64])
def test_any_box_of_any_tiling_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(dense_files, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(tensor_bytes, "SMALLEST_MAPPED_BYTES", 100)
    # A sharded tensor is known by its box here: ranks with real ones are in tests/process/test_sharded_state.py.
    monkeypatch.setattr(dense_reader, "local_box", lambda like: like)
    monkeypatch.setattr(dense_reader, "sharded_like", lambda part, like: part)
    chance = random.Random(piece_bytes)
    for number in range(15):
        shapes = [[chance.randrange(1, 9) for _ in range(chance.randrange(4))] for _ in range(3)]
        tensors = {f"t{n}": torch.arange(1, 1 + torch.Size(s).numel()).reshape(s) for n, s in enumerate(shapes)}
        dense = written(tmp_path / str(number), tensors, chance)
        store = LocalStore(tmp_path / str(number))
        whole, _ = read_dense(store, dense)
        assert all(torch.equal(whole[name], tensor) for name, tensor in tensors.items())
        assert digest_of_whole(whole, {}) == dense.digest
        wanted = {name: [sorted(chance.sample(range(n + 1), 2)) for n in t.shape] for name, t in tensors.items()}

        def like(name: str, shape: tuple[int, ...], wanted: Any = wanted) -> Any:
            box = wanted[name]
            return Box(shape, tuple(start for start, _ in box), tuple(end - start for start, end in box))

        parts, _ = read_dense(store, dense, like)
        for name, tensor in tensors.items():
            assert torch.equal(parts[name], tensor[tuple(slice(start, end) for start, end in wanted[name])]), name


def test_a_document_that_leaves_elements_out_is_damage(tmp_path: Path) -> None:
    dense = written(tmp_path, {"a": torch.arange(12).reshape(3, 4)}, random.Random(1))
    path = tmp_path / dense.named(DOCUMENT_NAME).path
    chunk = Chunk(offsets=(0, 0), sizes=(2, 4), file="__0_0.distcp", at=0, num_bytes=64)
    tensor = DenseTensor(name="a", dtype="int64", shape=(3, 4), digest="", chunks=(chunk,))
    data = document_bytes(IDENTITY, [tensor], {})
    path.write_bytes(data)
    files = [file for file in dense.files if not file.stored.path.endswith(DOCUMENT_NAME)]
    document = DenseFile(stored=stored_bytes(dense.named(DOCUMENT_NAME).path, data), writer=0)
    altered = DenseEntry(
        identity=IDENTITY, files=(*files, document), num_items=1, digest=dense.digest, dcp_version="1.0.0"
    )
    with pytest.raises(CorruptState, match="a has 8 of 12 elements"):
        read_dense(LocalStore(tmp_path), altered)
