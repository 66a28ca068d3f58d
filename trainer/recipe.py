"""The recipe sections above `ett/`, as strings, so that naming them imports nothing; and what a launch checks first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ett.errors import ConfigError, NotFound
from ett.section import build_section

if TYPE_CHECKING:
    from ett.trainer.config import ModelConfig

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
    "compile": "ett.compile_cache.config:CompileConfig",
    "publish": "ett.checkpoint.publish_config:PublishConfig",
}


def check(sections: Mapping[str, Any], cwd: str) -> None:
    """Check once for all ranks what sections need of each other, and of this host. A URL is first opened by the ranks.

    Args:
        sections: a resolved recipe, or the kept one of a job.
        cwd: the folder that the ranks will run in.
    Raises: NotFound: data.path is not there. ConfigError: [sparse.tables] or the model does not fit the data.
    """
    from ett.trainer.config import ModelConfig, SparseConfig
    from ett.trainer.data.config import DataConfig
    from ett.trainer.recipe_tables import recipe_tables

    path = sections.get("data", {}).get("path", "")
    is_local = path and "://" not in path and "::" not in path
    if is_local and not Path(cwd, Path(path).expanduser()).exists():
        raise NotFound(
            f"data.path {path!r} does not exist",
            expected="a file, a folder or an fsspec URL",
            do="correct it, or leave it empty to generate input",
        )
    model = build_section(ModelConfig, sections.get("model", {}), "model")
    data = build_section(DataConfig, sections.get("data", {}), "data")
    if model.kind != "hstu" and not data.num_dense:
        raise ConfigError(
            f"model.kind is {model.kind!r}, which begins with dense features, and data.format {data.format!r} has none",
            expected="model.kind = 'hstu', or data with dense features",
        )
    if sections.get("compile", {}).get("dense"):
        _check_compiled(model, sections.get("dense", {}).get("parallel", "buckets"))
    recipe_tables(model, build_section(SparseConfig, sections.get("sparse", {}), "sparse"), data.id_features)


def _check_compiled(model: ModelConfig, parallel: str) -> None:
    wrong = {
        f"model.kind is {model.kind!r}, whose histories have a length of their own each": model.kind == "hstu",
        f"dense.parallel is {parallel!r}, which has hooks of torch's in the model": parallel != "buckets",
    }
    fact = next((fact for fact, is_so in wrong.items() if is_so), None)
    if fact is not None:
        raise ConfigError(
            f"compile.dense is true, and {fact}",
            expected="dlrm or dcn_v2, dense.parallel = 'buckets'",
            do="--set compile.dense=false",
        )
