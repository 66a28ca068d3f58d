"""Loaded only as `ett.trainer`: a second copy under another name would split its state (ADR 0001)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "ett.trainer":
    raise ImportError(f"import this package as ett.trainer, not as {__name__} (docs/adr/0001-folders-at-the-root.md)")

if TYPE_CHECKING:
    from ett.trainer.embedding.cache_params import CacheParams
    from ett.trainer.embedding.embedding_bag_collection import EmbeddingBagCollection
    from ett.trainer.embedding.embedding_collection import EmbeddingCollection
    from ett.trainer.embedding.fused_optimizer import EmbOptimType, FusedParams
    from ett.trainer.embedding.sharding import ShardingType, TableSharding, row_wise_plan, table_wise_plan
    from ett.trainer.embedding.table_config import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
    from ett.trainer.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = [
    "CacheParams",
    "DataType",
    "EmbOptimType",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "FusedParams",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "PoolingType",
    "ShardingType",
    "TableSharding",
    "row_wise_plan",
    "table_wise_plan",
]

_MODULES = {
    "CacheParams": "embedding.cache_params",
    "DataType": "embedding.table_config",
    "EmbOptimType": "embedding.fused_optimizer",
    "EmbeddingBagCollection": "embedding.embedding_bag_collection",
    "EmbeddingBagConfig": "embedding.table_config",
    "EmbeddingCollection": "embedding.embedding_collection",
    "EmbeddingConfig": "embedding.table_config",
    "FusedParams": "embedding.fused_optimizer",
    "JaggedTensor": "jagged",
    "KeyedJaggedTensor": "jagged",
    "KeyedTensor": "jagged",
    "PoolingType": "embedding.table_config",
    "ShardingType": "embedding.sharding",
    "TableSharding": "embedding.sharding",
    "row_wise_plan": "embedding.sharding",
    "table_wise_plan": "embedding.sharding",
}


def __getattr__(name: str) -> object:
    # All of them need torch, and the command line reads recipes without it.
    if name in _MODULES:
        return getattr(import_module(f"ett.trainer.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
