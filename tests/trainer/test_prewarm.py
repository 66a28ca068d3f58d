"""`ett compile-cache prewarm RECIPE`: the ranks of a job find what it compiled, under the key that they ask for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from ett.cli import cli
from ett.compile_cache.cache_folder import allowed_paths, write_files
from ett.compile_cache.platform_facts import environment_options
from ett.errors import ConfigError, Unreachable
from ett.recipe import resolve
from ett.tracker import Run, RunIdentity
from ett.trainer import prewarm as prewarming
from ett.trainer.compile_plan import FOLDER_VARIABLE, fetch_compiled
from ett.trainer.job_recipe import build_recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"
FILES = {f"fxgraph/p5/{'a' * 52}/{'0' * 52}": b"graph"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a home, and files stand for what torch compiles there."""

    def compiles(config: object, plan: object, device: torch.device) -> None:
        write_files(Path(os.environ[FOLDER_VARIABLE]), FILES)

    for name in environment_options(os.environ):  # as tests of kernels set for the whole process
        monkeypatch.delenv(name)
    monkeypatch.setattr(prewarming, "compile_dense", compiles)
    monkeypatch.setenv(FOLDER_VARIABLE, "before")
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    return tmp_path


def prewarm(*args: str) -> Result:
    command = ["compile-cache", "prewarm", str(EXAMPLE), "--set", "compile.dense=true", *args]
    return CliRunner().invoke(cli, command, standalone_mode=False)


def test_ranks_find_what_was_compiled_for_them(home: Path) -> None:
    done = prewarm("--ranks", "2", "--set", "data.path=/not/here", "--json")
    assert done.exception is None
    data = json.loads(done.output)["data"]
    assert (data["fetched"], data["published"]) == ("miss", "published")
    run = Run(RunIdentity(job="j", attempt=1, rank=1, world_size=2, job_dir=home / "j"))
    recipe = build_recipe(resolve(EXAMPLE, ["compile.dense=true"]).sections)
    environ = {"ETT_HOME": str(home), "OMP_NUM_THREADS": "1"}  # as TorchElastic sets it
    fetched = fetch_compiled(run, recipe, environ)
    run.close()
    assert fetched is not None
    assert (fetched.result, fetched.cache.key) == ("hit", data["key"])


@pytest.mark.slow
@pytest.mark.parametrize("generation", [0, 2])
def test_a_process_has_nothing_of_one_that_was_killed_while_it_compiled(generation: int, home: Path) -> None:
    """Half an object would be signed and published with the rest; a replacement comes in a later generation."""
    run = Run(RunIdentity(job="j", attempt=1, rank=1, world_size=2, gen=generation, job_dir=home / "j"))
    recipe, environ = build_recipe(resolve(EXAMPLE, ["compile.dense=true"]).sections), {"ETT_HOME": str(home)}
    of_the_dead = home / "j" / "compiled" / "r1-1"
    of_another_rank = home / "j" / "compiled" / "r11-1"
    for folder in (of_the_dead, of_another_rank):
        write_files(folder, FILES)
    fetched = fetch_compiled(run, recipe, environ)
    assert fetched is not None
    assert (allowed_paths(fetched.cache.folder), of_the_dead.exists()) == ([], False)
    assert of_another_rank.exists()
    write_files(fetched.cache.folder, FILES)  # of this process, which goes on after another rank's death
    again = fetch_compiled(run, recipe, environ)
    run.close()
    assert again is not None
    assert allowed_paths(again.cache.folder) == list(FILES)


def test_what_is_there_is_not_compiled_again(home: Path) -> None:
    prewarm()
    assert "hit" in prewarm().output


@pytest.mark.slow
def test_a_shared_store_gets_what_this_host_has(home: Path) -> None:
    prewarm()
    uri = ("--set", f"compile.uri={home / 'shared'}")
    assert "hit, published" in prewarm(*uri).output
    assert "hit, nothing_new" in prewarm(*uri).output


def test_a_recipe_that_compiles_nothing_is_refused(home: Path) -> None:
    assert isinstance(prewarm("--set", "compile.dense=false").exception, ConfigError)


def test_what_cannot_be_published_is_an_error(home: Path) -> None:
    (home / "compile-cache").write_text("a file, where the folder should be")
    assert isinstance(prewarm().exception, Unreachable)
