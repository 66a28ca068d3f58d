"""A job's resolved recipe as the config dataclasses that a worker reads; importable without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ett.checkpoint.config import CheckpointConfig
from ett.compile_cache.config import CompileConfig
from ett.errors import NotFound
from ett.recovery.config import RecoveryConfig
from ett.section import build_section
from ett.trainer.config import TrainerConfig
from ett.trainer.data.config import DataConfig


@dataclass(frozen=True, slots=True)
class JobRecipe:
    """The sections of recipe.json that a worker reads."""

    data: DataConfig
    trainer: TrainerConfig
    checkpoint: CheckpointConfig
    recovery: RecoveryConfig
    compile: CompileConfig


def read_recipe(path: Path) -> JobRecipe:
    """Build the config dataclasses again from a job's resolved recipe."""
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as err:
        raise NotFound(f"{path} does not exist", do="start workers by `ett launch RECIPE.toml`") from err
    return build_recipe(plain)


def build_recipe(plain: Mapping[str, Any]) -> JobRecipe:
    """Build them from the sections of a resolved recipe."""
    sections = {field.name: plain.get(field.name, {}) for field in fields(TrainerConfig)}
    return JobRecipe(
        build_section(DataConfig, plain.get("data", {}), "data"),
        build_section(TrainerConfig, sections),
        build_section(CheckpointConfig, plain.get("checkpoint", {}), "checkpoint"),
        build_section(RecoveryConfig, plain.get("recovery", {}), "recovery"),
        build_section(CompileConfig, plain.get("compile", {}), "compile"),
    )
