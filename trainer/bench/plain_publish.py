"""What the plain leg of `ett bench ett` publishes inside its job: every table's rows brought together, and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ett.checkpoint.safetensors_file import SafetensorsFile, TensorSpec
from ett.checkpoint.table import copy_of_rows
from ett.checkpoint.tensor_bytes import dtype_name, tensor_bytes
from ett.trainer.comm.collectives import Collectives
from ett.trainer.dense.recipe_model import RecipeModel


def publish(model: RecipeModel, collectives: Collectives, folder: Path) -> None:
    """Write weights by id, a file a table, and the dense part, to a new folder; every rank calls, and waits for it."""
    if collectives.rank == 0:
        folder.mkdir()
    for shard in model.ebc.shards():
        own = copy_of_rows(shard)
        ids, weights = torch.cat(collectives.gather(own.ids)), torch.cat(collectives.gather(own.weights))
        if collectives.rank == 0:
            order = torch.argsort(ids)
            _write(folder / f"{shard.name}.safetensors", {"ids": ids[order], "weights": weights[order]})
    if collectives.rank == 0:
        _write(folder / "dense.safetensors", {name: value.detach() for name, value in model.named_parameters()})
    collectives.barrier()


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    specs = [TensorSpec(name, dtype_name(value, name), tuple(value.shape)) for name, value in tensors.items()]
    file = SafetensorsFile(path, specs, {})
    try:
        for name, value in tensors.items():
            file.write(name, 0, tensor_bytes(value))
    finally:
        file.close()
