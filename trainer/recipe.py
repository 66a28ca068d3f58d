"""The recipe sections above `ett/`, as strings, so that naming them imports nothing."""

from __future__ import annotations

SECTIONS: dict[str, str] = {
    "data": "ett.trainer.data.config:DataConfig",
    "model": "ett.trainer.config:ModelConfig",
    "sparse": "ett.trainer.config:SparseConfig",
    "dense": "ett.trainer.config:DenseConfig",
    "optimizer": "ett.trainer.config:OptimizerConfig",
    "train": "ett.trainer.config:TrainConfig",
    "eval": "ett.trainer.config:EvalConfig",
    "checkpoint": "ett.checkpoint.config:CheckpointConfig",
    "recovery": "ett.recovery.config:RecoveryConfig",
}
