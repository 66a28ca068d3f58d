"""One commit as files that `torch.load(path, weights_only=True)` opens: a dict of tensors for each table and the rest.

Made from the safetensors of the same commit, a tensor at a time and never copied: they are mapped, and torch writes
them from there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ett.checkpoint.commit import Commit
from ett.checkpoint.safetensors_export import INDEX_NAME, ExportedTensors, appearing, write_safetensors
from ett.checkpoint.safetensors_file import TORCH_NAMES
from ett.checkpoint.store import Store

STATE = "__state__"  # of the dense file: what is no tensor, as JSON


def export_torch(store: Store, commit: Commit, to: Path) -> ExportedTensors:
    """Write a commit's tensors into the new or empty folder `to`, which appears with the last of them.

    `t0000.pt` and so on have `<table>`, `<table>.ids`, `<table>.<state>`; `dense.pt` all else. Every byte is verified.
    Needs as much room on the disk again while it works.

    Raises: as `export_safetensors`.
    """
    with appearing(to) as folder:
        files = {}
        for name, where in write_safetensors(store, commit, folder, to).items():
            files[name] = f"{Path(where).stem}.pt"
        for path in sorted(folder.glob("*.safetensors")):
            _rewrite(path, path.with_suffix(".pt"))
            path.unlink()
        (folder / INDEX_NAME).unlink()
        num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return ExportedTensors(path=to, files=files, num_bytes=num_bytes)


def _rewrite(source: Path, target: Path) -> None:
    with open(source, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    metadata = header.pop("__metadata__")
    tensors: dict[str, Any] = {name: _mapped(source, 8 + length, entry) for name, entry in header.items()}
    if "state" in metadata:
        tensors[STATE] = metadata["state"]
    with open(target, "xb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def _mapped(path: Path, data: int, entry: dict[str, Any]) -> torch.Tensor:
    start, end = entry["data_offsets"]
    dtype = getattr(torch, TORCH_NAMES[entry["dtype"]])
    if start == end:
        return torch.empty(entry["shape"], dtype=dtype)
    memory = np.memmap(path, np.uint8, "c", data + start, (end - start,))  # private: nothing is written to
    return torch.from_numpy(memory).view(dtype).reshape(entry["shape"])
