"""A rank's start with compile.dense: the nodes that there are, what they say; training is what it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from one_rank import trained

from ett.compile_cache import CompileCache, CompileConfig
from ett.compile_cache.cache import Fetched, FetchResult
from ett.compile_cache.cache_folder import write_files
from ett.compile_cache.key import KeyParts
from ett.errors import ConfigError
from ett.recipe import resolve
from ett.startup_log import read_starts
from ett.startup_path import start_path
from ett.tracker import Run, RunIdentity
from ett.trainer import compile_ahead
from ett.trainer import compile_plan as compile_plan_module
from ett.trainer.compile_ahead import CompiledStart, compile_dense
from ett.trainer.compile_plan import FOLDER_VARIABLE, FetchedCode, compile_plan
from ett.trainer.dense import compiled_logits
from ett.trainer.job_recipe import build_recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"
GRAPH = f"fxgraph/p5/{'a' * 52}/{'0' * 52}"
SMALL = ("data.generate.rows=1500", "train.batch_size=128", "train.max_steps=4", "eval.enabled=false")


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the model's own function stand for what torch would make of it: a compilation takes a minute."""
    monkeypatch.setattr(compiled_logits, "_compiled", lambda logits: logits)
    monkeypatch.setenv(FOLDER_VARIABLE, "before")


def live(folder: Path, *overrides: str) -> dict[str, Any]:
    folder.mkdir()
    sections = resolve(EXAMPLE, [*SMALL, *overrides]).sections
    (folder / "recipe.json").write_text(json.dumps(sections))
    return trained(Run(RunIdentity(job="j", attempt=1, job_dir=folder)), {"ETT_HOME": str(folder)})


def log_files(folder: Path) -> list[tuple[str, bytes]]:
    return [(f"{p.parent.name}/{p.name}", p.read_bytes()) for p in sorted((folder / "events").rglob("r0-*.jsonl"))]


def compile_events(folder: Path) -> list[tuple[object, object]]:
    lines = [json.loads(line.partition(b"\t")[0]) for _, data in log_files(folder) for line in data.splitlines()]
    return [(line["action"], line["result"]) for line in lines if line["ev"] == "compile"]


@pytest.mark.slow
def test_compiling_ahead_leaves_what_is_trained(tmp_path: Path) -> None:
    assert live(tmp_path / "with", "compile.dense=true") == live(tmp_path / "without")
    assert compile_events(tmp_path / "with") == [("fetch", "miss"), ("publish", "nothing_new")]
    assert compile_events(tmp_path / "without") == []
    (start,) = read_starts(log_files(tmp_path / "with"))
    path = start_path(start)
    assert path is not None
    waited = {node.node.name: {start.nodes[i].name for i in node.waited_for} for node in path.nodes}
    assert waited["compile"] == {"device_init", "compile_fetch"}
    assert "compile" in waited["restore"]
    assert os.environ[FOLDER_VARIABLE] == str(tmp_path / "with" / "compiled" / f"r0-{os.getpid()}")


@pytest.mark.slow
def test_without_the_cache_nothing_is_fetched(tmp_path: Path) -> None:
    live(tmp_path / "j", "compile.dense=true", "compile.cache=false")
    assert compile_events(tmp_path / "j") == []
    assert os.environ[FOLDER_VARIABLE] == "before"


@pytest.mark.slow
def test_a_start_whose_key_cannot_be_made_goes_on_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> KeyParts:
        raise PermissionError("the model's sources")

    monkeypatch.setattr(compile_plan_module, "recipe_key_parts", fails)
    live(tmp_path / "j", "compile.dense=true")
    assert compile_events(tmp_path / "j") == [("fetch", "failed")]


@pytest.mark.parametrize(
    "environ, result, actions",
    [
        ({"RANK": "1", "LOCAL_RANK": "1"}, "miss", ["wait", "publish"]),
        ({"RANK": "1", "LOCAL_RANK": "1"}, "hit", ["publish"]),
        ({"RANK": "1", "LOCAL_RANK": "1"}, "refused", ["publish"]),
        ({"RANK": "1", "LOCAL_RANK": "1"}, "failed", ["publish"]),
        ({"RANK": "1", "LOCAL_RANK": "1"}, "late", ["publish"]),
        ({}, "miss", ["publish"]),
    ],
)
def test_only_a_rank_that_misses_waits_for_another(
    environ: Mapping[str, str], result: FetchResult, actions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def emit(ev: str, **fields: object) -> None:
        said.append(str(fields["action"]))

    monkeypatch.setattr(compile_ahead, "compile_dense", lambda *given: None)
    parts = KeyParts(software={}, machine={}, code="", model={}, options={}, shapes=[])
    cache = CompileCache(CompileConfig(wait_s=0.0), parts, tmp_path / "f", {"ETT_HOME": str(tmp_path)}, emit)
    start = CompiledStart(build_recipe(resolve(EXAMPLE, SMALL).sections), environ)
    start.compile(FetchedCode(cache, result), 2, torch.device("cpu"))
    start.close()
    assert said == actions


def test_a_rank_is_waited_for_less_long_than_the_others_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0, which has compiled and published nothing, waits for the others in its first collective meanwhile."""
    waits: list[float] = []

    class Cache:
        def wait(self, longest_s: float) -> Fetched:
            waits.append(longest_s)
            return Fetched(result="miss")

        def publish(self) -> None: ...

    monkeypatch.setattr(compile_ahead, "compile_dense", lambda *given: None)
    recipe = build_recipe(resolve(EXAMPLE, [*SMALL, "train.comm_timeout_s=40"]).sections)
    start = CompiledStart(recipe, {"LOCAL_RANK": "1"})
    start.compile(FetchedCode(cast(CompileCache, Cache()), "miss"), 2, torch.device("cpu"))
    start.close()
    assert waits == [20.0]


class Starts:
    """Starts of one host, where torch cannot load a file `broken`, and compiles `whole`."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.events = home, list[tuple[object, object]]()
        self._folder = home
        monkeypatch.setattr(compile_ahead, "compile_dense", self._compile)

    def process(self) -> CompileCache:
        self._folder = self.home / f"process-{len(self.events)}"
        parts = KeyParts(software={}, machine={}, code="", model={}, options={}, shapes=[])
        return CompileCache(CompileConfig(), parts, self._folder, {"ETT_HOME": str(self.home)}, self._emit)

    def run(self) -> None:
        cache = self.process()
        start = CompiledStart(build_recipe(resolve(EXAMPLE, SMALL).sections), {})
        start.compile(FetchedCode(cache, cache.fetch().result), 1, torch.device("cpu"))
        start.close()

    def _compile(self, *given: object) -> None:
        write_files(self._folder, {GRAPH: b"whole"})
        if (self._folder / GRAPH).read_bytes() == b"broken":
            raise ImportError("undefined symbol")

    def _emit(self, ev: str, **fields: object) -> None:
        self.events.append((fields["action"], fields["result"]))


def test_code_that_torch_cannot_load_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(tmp_path, monkeypatch)
    with_broken(starts.process()).publish()
    starts.run()
    assert starts.events[1:] == [("fetch", "hit"), ("load", "refused"), ("publish", "published")]
    starts.run()
    assert starts.events[4:] == [("fetch", "hit"), ("publish", "nothing_new")]


def test_a_start_that_has_nothing_fetched_fails_as_torch_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(tmp_path, monkeypatch)
    monkeypatch.setattr(starts, "process", lambda made=starts.process: with_broken(made()))
    with pytest.raises(ImportError, match="undefined symbol"):
        starts.run()


def with_broken(cache: CompileCache) -> CompileCache:
    write_files(cache.folder, {GRAPH: b"broken"})
    return cache


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nmore"),
        ImportError("No working C++ compiler found"),
        OSError("No working C++ compiler found"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_compiler_that_is_missing_is_a_users_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise error

    monkeypatch.setattr(compiled_logits, "_compiled", lambda logits: fails)
    recipe = build_recipe(resolve(EXAMPLE, SMALL).sections)
    num_threads = torch.get_num_threads()
    with pytest.raises(ConfigError, match="No working C\\+\\+ compiler found;"):
        compile_dense(recipe.trainer, compile_plan(recipe, 1), torch.device("cpu"))
    torch.set_num_threads(num_threads)
