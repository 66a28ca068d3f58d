from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ett.errors import ConfigError
from ett.trainer.config import (
    DenseConfig,
    EvalConfig,
    ModelConfig,
    OptimizerConfig,
    SparseConfig,
    TrainConfig,
)

WRONG: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (ModelConfig, {"dropout": 1.0}, "model.dropout is 1.0"),
    (ModelConfig, {"top_mlp": (8, 0)}, "model.top_mlp is 0"),
    (ModelConfig, {"kind": "dcn_v2", "cross_layers": 0}, "model.cross_layers is 0"),
    (ModelConfig, {"cross_rank": 0}, "model.cross_rank is 0"),
    (SparseConfig, {"learning_rate": 0.0}, "sparse.learning_rate is 0.0"),
    (SparseConfig, {"init_scale": float("nan")}, "sparse.init_scale is nan"),
    (SparseConfig, {"tier": "ssd"}, "sparse.cache_rows is 0"),
    (SparseConfig, {"cache_rows": 10}, "sparse.cache_rows is 10 and sparse.tier is 'host'"),
    (SparseConfig, {"state_cache_rows": 10}, "sparse.state_cache_rows is 10 and sparse.tier is 'host'"),
    (SparseConfig, {"tier": "redis", "cache_rows": 10}, "sparse.redis_url is empty"),
    (SparseConfig, {"tier": "redis", "cache_rows": 10, "tier_dir": "/d"}, "sparse.tier_dir is set"),
    (SparseConfig, {"redis_url": "redis://h:1/0"}, "sparse.redis_url is set and sparse.tier is 'host'"),
    (SparseConfig, {"redis_timeout_s": 0.0}, "sparse.redis_timeout_s is 0.0"),
    (SparseConfig, {"redis_attempts": 0}, "sparse.redis_attempts is 0"),
    (SparseConfig, {"admit_after": 0}, "sparse.admit_after is 0"),
    (SparseConfig, {"max_rows": -1}, "sparse.max_rows is -1"),
    (SparseConfig, {"ttl_updates": -1}, "sparse.ttl_updates is -1"),
    (SparseConfig, {"when_full": "lru"}, "sparse.when_full is 'lru' and no table has a bound"),
    (DenseConfig, {"threads": 0}, "dense.threads is 0"),
    (OptimizerConfig, {"schedule": "cosine"}, "optimizer.decay_steps is 0"),
    (OptimizerConfig, {"beta2": 1.0}, "optimizer.beta2 is 1.0"),
    (TrainConfig, {"batch_size": 0}, "train.batch_size is 0"),
    (TrainConfig, {"seed": -1}, "train.seed is -1"),
    (EvalConfig, {"batch_size": 0}, "eval.batch_size is 0"),
    (EvalConfig, {"every_steps": 10, "enabled": False}, "eval.every_steps is 10"),
]


@pytest.mark.parametrize(("section", "values", "message"), WRONG)
def test_an_invalid_value_is_refused_by_name(section: Callable[..., Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        section(**values)
