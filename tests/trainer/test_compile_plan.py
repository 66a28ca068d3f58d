"""What of a recipe its compile key depends on, and what a launch refuses to compile."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.errors import ConfigError
from ett.recipe import resolve
from ett.trainer.compile_plan import compile_plan, has_compiling_rank, recipe_key_parts
from ett.trainer.data.lanes import longest_slice, slice_begin
from ett.trainer.job_recipe import build_recipe
from ett.trainer.recipe import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"


@functools.cache
def key_of(*overrides: str, world_size: int = 2) -> str:
    recipe = build_recipe(resolve(EXAMPLE, ["compile.dense=true", *overrides]).sections)
    return recipe_key_parts(recipe, compile_plan(recipe, world_size), {}).key


@pytest.mark.parametrize(
    "override",
    [
        "job.model=another",
        "job.team=ads",
        "data.path=/elsewhere/data",
        "data.generate.rows=77",
        "telemetry.mode=off",
        "telemetry.hooks=none",
        "checkpoint.interval=7 steps",
        "recovery.max_restarts=9",
        "optimizer.learning_rate=0.5",
        "train.seed=9",
        "train.epochs=3",
        "sparse.learning_rate=0.7",
        "compile.uri=s3://bucket/cache",
    ],
)
def test_what_no_graph_depends_on_leaves_the_key(override: str) -> None:
    assert key_of(override) == key_of()


@pytest.mark.parametrize(
    "override",
    [
        "model.kind=dcn_v2",
        "model.top_mlp=[64, 33]",
        "model.embedding_dim=8",
        "model.dropout=0.5",
        "dense.precision=bfloat16",
        "dense.device=auto",
        "dense.threads=2",
        "train.batch_size=512",
        "train.accumulate=2",
    ],
)
def test_what_a_graph_depends_on_changes_the_key(override: str) -> None:
    assert key_of(override) != key_of()


def test_ranks_of_another_world_have_slices_of_another_size() -> None:
    assert key_of(world_size=4) != key_of()


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(1, 400), st.lists(st.integers(1, 400), max_size=6))
def test_no_slice_is_longer_than_what_is_compiled(world: int, size: int, lanes: list[int]) -> None:
    ends = [*sorted({end for end in lanes if end < size}), size]
    begins = [slice_begin(rank, world, ends) for rank in range(world + 1)]
    assert max(np.diff(begins)) <= longest_slice(size, world)


@pytest.mark.parametrize(
    "override, fact", [("model.kind=hstu", "histories"), ("dense.parallel=ddp", "hooks"), ("dense.parallel=fsdp", "")]
)
def test_what_cannot_be_compiled_is_refused_before_a_start(override: str, fact: str, tmp_path: Path) -> None:
    sections = resolve(EXAMPLE, ["compile.dense=true", override]).sections
    with pytest.raises(ConfigError, match=f"compile.dense is true, and .*{fact}"):
        check(sections, str(tmp_path))
    check(resolve(EXAMPLE, ["compile.dense=true"]).sections, str(tmp_path))


@pytest.mark.parametrize(
    "uri, rank, local_rank, waits",
    [("", "0", "0", False), ("", "1", "1", True), ("", "8", "0", False), ("s3://b/c", "8", "0", True)],
)
def test_one_rank_compiles_for_all_who_can_fetch_it(uri: str, rank: str, local_rank: str, waits: bool) -> None:
    recipe = build_recipe(resolve(EXAMPLE, [f"compile.uri={uri}"]).sections)
    assert has_compiling_rank(recipe, {"RANK": rank, "LOCAL_RANK": local_rank}) == waits
