"""`ett compile-cache prewarm`: what a job's ranks would compile at their first start, compiled and published now."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ett.compile_cache import CompileCache
from ett.errors import ConfigError, Unreachable
from ett.trainer.compile_ahead import compile_dense
from ett.trainer.compile_plan import FOLDER_VARIABLE, compile_plan, recipe_key_parts
from ett.trainer.dense.device import dense_device
from ett.trainer.job_recipe import build_recipe


def prewarm(sections: Mapping[str, Any], world_size: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Fill the stores of a recipe for a job of so many ranks; nothing is compiled that they have.

    Returns: `key`; `fetched` and `published`, as in the event `compile`; `compile_s`.
    Raises: ConfigError: the recipe compiles nothing, or torch cannot. Unreachable: what was compiled is not published.
    """
    recipe = build_recipe(sections)
    if not (recipe.compile.dense and recipe.compile.cache):
        raise ConfigError(
            f"compile.dense is {recipe.compile.dense}, compile.cache {recipe.compile.cache}: there is nothing to keep",
            expected="both true",
            do="--set compile.dense=true",
        )
    plan = compile_plan(recipe, world_size)
    parts = recipe_key_parts(recipe, plan, environ)
    with tempfile.TemporaryDirectory(prefix="ett-prewarm-") as folder:
        cache = CompileCache(recipe.compile, parts, Path(folder), environ, _say_nothing)
        began, fetched = time.perf_counter(), cache.fetch()
        if fetched.result != "hit":
            os.environ[FOLDER_VARIABLE] = folder
            compile_dense(recipe.trainer, plan, dense_device(recipe.trainer.dense.device, 0))
        published = cache.publish()
        seconds = time.perf_counter() - began
    if published in ("failed", "too_large"):
        raise Unreachable(
            f"what was compiled for {cache.key} is not published: {published}",
            expected="a store that can be written, and a pack within compile.max_pack_bytes",
            do="the line above says why",
        )
    return {"key": cache.key, "fetched": fetched.result, "published": published, "compile_s": round(seconds, 3)}


def _say_nothing(ev: str, **fields: object) -> None:
    """There is no job whose log would have it."""
