"""Between ours and TorchRec's: inputs, outputs and collections of tables; the same memory under the other's class.

`from_torchrec` needs no torchrec: it reads the methods that its classes have. `to_torchrec` imports it; nothing of the
trainer does but this and the benchmark that compares.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from ett.errors import ConfigError
from ett.trainer.embedding.embedding_bag_collection import EmbeddingBagCollection
from ett.trainer.embedding.embedding_collection import EmbeddingCollection
from ett.trainer.embedding.table_config import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from ett.trainer.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor

Ours = JaggedTensor | KeyedJaggedTensor | KeyedTensor | EmbeddingBagCollection | EmbeddingCollection
_JAGGED = "torchrec.sparse.jagged_tensor"
_CONFIGS = "torchrec.modules.embedding_configs"
_MODULES = "torchrec.modules.embedding_modules"
# Fields of TorchRec's configs that change what a table does, and that ours do not have.
_NOT_TAKEN = ("need_pos", "virtual_table_eviction_policy", "num_embeddings_post_pruning", "total_num_buckets")


def from_torchrec(theirs: Any, **settings: Any) -> Ours:
    """Return ours for TorchRec's object of the same name.

    Values, weights and tables are shared, and so are lengths and offsets that are int64 already; int32 ones are
    converted. A collection must not be sharded.

    Args:
        settings: of a collection: keywords of ours, such as fused_params.
    Raises: ConfigError: it is none of the five classes, or a table has what ours cannot do.
    """
    match type(theirs).__name__:
        case "JaggedTensor":
            parts = theirs.values(), theirs.weights_or_none(), theirs.lengths_or_none(), theirs.offsets_or_none()
            return JaggedTensor(*parts)
        case "KeyedTensor":
            return KeyedTensor(theirs.keys(), theirs.length_per_key(), theirs.values(), theirs.key_dim())
        case "KeyedJaggedTensor":
            is_vbe = theirs.variable_stride_per_key()
            return KeyedJaggedTensor(
                theirs.keys(),
                theirs.values(),
                theirs.weights_or_none(),
                theirs.lengths_or_none(),
                theirs.offsets_or_none(),
                None if is_vbe else theirs.stride(),
                theirs.stride_per_key_per_rank() if is_vbe else None,
                theirs.inverse_indices_or_none(),
            )
        case "EmbeddingBagCollection":
            tables = [EmbeddingBagConfig(**_fields(c), pooling=PoolingType[c.pooling.name]) for c in _configs(theirs)]
            rows = {name: bag.weight for name, bag in theirs.embedding_bags.items()}
            return EmbeddingBagCollection(tables, theirs.is_weighted(), weights=rows, **settings)
        case "EmbeddingCollection":
            plain = [EmbeddingConfig(**_fields(c)) for c in _configs(theirs)]
            rows = {name: table.weight for name, table in theirs.embeddings.items()}
            return EmbeddingCollection(plain, need_indices=theirs.need_indices(), weights=rows, **settings)
    raise ConfigError(
        f"a {type(theirs).__name__} was given",
        expected="a JaggedTensor, KeyedJaggedTensor, KeyedTensor, EmbeddingBagCollection or EmbeddingCollection of"
        " TorchRec",
    )


def to_torchrec(ours: Ours) -> Any:
    """Return TorchRec's object of the same name, sharing all memory.

    Raises: ConfigError: torchrec is not installed, or a collection is sharded or has a table that grows.
    """
    if isinstance(ours, EmbeddingBagCollection | EmbeddingCollection):
        return _collection(ours)
    module = _torchrec(_JAGGED)
    if isinstance(ours, KeyedTensor):
        return module.KeyedTensor(ours.keys(), ours.length_per_key(), ours.values(), ours.key_dim())
    parts = ours.values(), ours.weights_or_none(), ours.lengths_or_none(), ours.offsets_or_none()
    if isinstance(ours, JaggedTensor):
        return module.JaggedTensor(*parts)
    is_vbe = ours.variable_stride_per_key()
    return module.KeyedJaggedTensor(
        ours.keys(),
        *parts,
        stride=None if is_vbe else ours.stride(),
        stride_per_key_per_rank=ours.stride_per_key_per_rank() if is_vbe else None,
        inverse_indices=ours.inverse_indices_or_none(),
    )


def _torchrec(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as err:
        raise ConfigError(
            f"torchrec cannot be imported: {err}", expected="torchrec beside torch", do="see docs/core.md, TorchRec"
        ) from err


def _configs(theirs: Any) -> list[Any]:
    bags = hasattr(theirs, "embedding_bag_configs")
    return list(theirs.embedding_bag_configs() if bags else theirs.embedding_configs())


def _fields(theirs: Any) -> dict[str, Any]:
    """Return the fields that both configs have; the rows are there, so how they were drawn does not matter."""
    for name in _NOT_TAKEN:
        if getattr(theirs, name, None):
            raise ConfigError(f"table {theirs.name} has {name}", expected="a table without: ours does not have it")
    if theirs.data_type.name != DataType.FP32.name:
        raise ConfigError(f"table {theirs.name}: data_type is {theirs.data_type.name}", expected="FP32")
    names = ("num_embeddings", "embedding_dim", "name", "weight_init_max", "weight_init_min", "use_virtual_table")
    return {name: getattr(theirs, name) for name in names} | {"feature_names": list(theirs.feature_names)}


def _collection(ours: EmbeddingBagCollection | EmbeddingCollection) -> Any:
    configs, modules = _torchrec(_CONFIGS), _torchrec(_MODULES)
    parts = ours.embedding_bags if isinstance(ours, EmbeddingBagCollection) else ours.embeddings
    tables = ours.embedding_bag_configs() if isinstance(ours, EmbeddingBagCollection) else ours.embedding_configs()
    theirs = []
    for table in tables:
        weight = getattr(parts[table.name], "weight", None)
        if weight is None or len(weight) != table.num_embeddings:
            raise ConfigError(
                f"table {table.name} has not all its rows here", expected="a table of a fixed size, on one rank"
            )
        shared = {
            "num_embeddings": table.num_embeddings,
            "embedding_dim": table.embedding_dim,
            "name": table.name,
            "feature_names": list(table.features),
            "weight_init_max": table.weight_init_max,
            "weight_init_min": table.weight_init_min,
        }
        if isinstance(table, EmbeddingBagConfig):
            pooling = configs.PoolingType[table.pooling.name]
            theirs.append(configs.EmbeddingBagConfig(**shared, pooling=pooling))
        else:
            theirs.append(configs.EmbeddingConfig(**shared))
    if isinstance(ours, EmbeddingBagCollection):
        made = modules.EmbeddingBagCollection(theirs, is_weighted=ours.is_weighted(), device="meta")
    else:
        made = modules.EmbeddingCollection(theirs, device="meta", need_indices=ours.need_indices())
    for name, module in (made.embedding_bags if hasattr(made, "embedding_bags") else made.embeddings).items():
        module.weight = parts.get_parameter(f"{name}.weight")
    made._device = torch.device("cpu")  # made on "meta", so that it draws no rows of its own
    return made
