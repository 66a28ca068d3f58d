"""The model's dense tensors of a commit as one safetensors file, under the names of its state_dict."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from ett.checkpoint.artefact_folder import ArtefactFolder
from ett.checkpoint.canonical_json import Json
from ett.checkpoint.dense_entry import DenseEntry
from ett.checkpoint.publication import PublishedDense
from ett.checkpoint.safetensors_file import TensorSpec, layout_of
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import Bytes

DENSE_NAME = "dense.safetensors"
_OF_MODEL = "model."


def publish_dense(store: Store, dense: DenseEntry, into: ArtefactFolder) -> PublishedDense:
    """Write the model's tensors, without those of optimizers; the dense state is read whole, and verified.

    Raises: CorruptState: any byte differs from what was committed. ConfigError: safetensors does not have a type.
    """
    stored, facts = into.make(DENSE_NAME, lambda: _write(store, dense, into))
    return PublishedDense(stored=stored, source_digest=dense.digest, **facts)


def _write(store: Store, dense: DenseEntry, into: ArtefactFolder) -> tuple[StoredFile, Json]:
    from ett.checkpoint.dense_reader import read_dense  # torch: after the tables, whose memory is given back by then
    from ett.checkpoint.tensor_bytes import dtype_name, tensor_bytes

    found, tree = read_dense(store, dense)
    tensors = {name.removeprefix(_OF_MODEL): value for name, value in found.items() if name.startswith(_OF_MODEL)}
    specs = [TensorSpec(name, dtype_name(value, name), tuple(value.shape)) for name, value in sorted(tensors.items())]
    layout = layout_of(specs, {"format": "pt", "state": json.dumps(tree["model"], sort_keys=True)})

    def pieces() -> Iterator[Bytes]:
        yield np.frombuffer(layout.head, np.uint8)
        for name in layout.starts:
            yield tensor_bytes(tensors[name])

    return into.write(DENSE_NAME, pieces), {"num_tensors": len(tensors)}
