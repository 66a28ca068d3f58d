"""The recipe sections above `ett/`, as strings, so that naming them imports nothing; and what a launch checks first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ett.errors import NotFound

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


def check(sections: Mapping[str, Any], cwd: str) -> None:
    """Check what the recipe needs of this host, once for all ranks: local data. A URL is first opened by the ranks.

    Args:
        sections: a resolved recipe, or the kept one of a job.
        cwd: the folder that the ranks will run in.
    Raises: NotFound: data.path is not there.
    """
    path = sections.get("data", {}).get("path", "")
    is_local = path and "://" not in path and "::" not in path
    if is_local and not Path(cwd, Path(path).expanduser()).exists():
        raise NotFound(
            f"data.path {path!r} does not exist",
            expected="a file, a folder or an fsspec URL",
            do="correct it, or leave it empty to generate input",
        )
