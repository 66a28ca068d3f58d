"""What changes a key, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ett.compile_cache import platform_facts
from ett.compile_cache.code_digest import code_digest
from ett.compile_cache.key import KEY_DIGITS, KeyParts
from ett.compile_cache.platform_facts import (
    environment_options,
    key_parts,
    machine_facts,
    software_facts,
    torch_facts,
)

CODE = '''
def forward(x):
    """Return twice x."""
    return x * 2  # twice
'''


def parts_of(code: str = CODE, folder: Path = Path(), **changed: object) -> KeyParts:
    source = folder / "model.py"
    source.write_text(code)
    parts = key_parts(
        code=[source],
        model={"kind": "dlrm", "top_mlp": [64, 32]},
        options={"dynamic": False, "threads": 1},
        shapes=[[256, 13]],
        environ={},
    )
    return replace(parts, **changed)  # type: ignore[arg-type]


def test_a_key_is_the_same_for_the_same_parts(tmp_path: Path) -> None:
    assert parts_of(folder=tmp_path).key == parts_of(folder=tmp_path).key
    assert len(parts_of(folder=tmp_path).key) == KEY_DIGITS


MUTATIONS: dict[str, Callable[[KeyParts], KeyParts]] = {
    "torch": lambda parts: replace(parts, software={**parts.software, "torch version": "9.9.9"}),
    "torch's commit": lambda parts: replace(parts, software={**parts.software, "torch git_version": "0"}),
    "CUDA": lambda parts: replace(parts, software={**parts.software, "torch cuda": "99.9"}),
    "Triton": lambda parts: replace(parts, software={**parts.software, "triton": "9.9"}),
    "Python": lambda parts: replace(parts, software={**parts.software, "python": "3.99"}),
    "C++ compiler": lambda parts: replace(parts, software={**parts.software, "compiler": "g++ 99"}),
    "driver": lambda parts: replace(parts, machine={**parts.machine, "driver": "999.1"}),
    "GPU": lambda parts: replace(parts, machine={**parts.machine, "gpus": ["NVIDIA B300"]}),
    "processor": lambda parts: replace(parts, machine={**parts.machine, "cpu_flags": "0"}),
    "model configuration": lambda parts: replace(parts, model={**parts.model, "top_mlp": [64, 33]}),
    "compiler option": lambda parts: replace(parts, options={**parts.options, "mode": "max-autotune"}),
    "threads": lambda parts: replace(parts, options={**parts.options, "threads": 2}),
    "shapes": lambda parts: replace(parts, shapes=[[257, 13]]),
    "dynamic shapes": lambda parts: replace(parts, shapes=[["dynamic", 13]]),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_compiled_code_depends_on_changes_the_key(name: str, tmp_path: Path) -> None:
    before = parts_of(folder=tmp_path)
    after = MUTATIONS[name](before)
    assert after.as_json() != before.as_json()
    assert after.key != before.key


@pytest.mark.parametrize(
    "code",
    [CODE.replace("x * 2", "x * 3"), CODE.replace("forward", "backward"), CODE + "\nLIMIT = 1\n"],
    ids=["a constant", "a name", "a statement"],
)
def test_other_model_code_is_another_key(code: str, tmp_path: Path) -> None:
    assert parts_of(code, tmp_path).key != parts_of(folder=tmp_path).key


@pytest.mark.parametrize(
    "code",
    [CODE.replace("  # twice", "  # x + x"), CODE.replace("Return twice x", "Double"), "\n\n# more\n" + CODE],
    ids=["a comment", "a docstring", "lines"],
)
def test_words_in_model_code_leave_the_key(code: str, tmp_path: Path) -> None:
    assert parts_of(code, tmp_path).key == parts_of(folder=tmp_path).key


def test_where_code_lies_leaves_the_key(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert parts_of(folder=tmp_path / "elsewhere").key == parts_of(folder=tmp_path).key


def test_a_function_that_is_only_a_docstring_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('def f():\n    """Words."""\n')
    (tmp_path / "b.py").write_text('def f():\n    """Others."""\n')
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.py").write_text('def f():\n    """Others."""\n')
    assert code_digest([tmp_path / "a.py"]) == code_digest([tmp_path / "c" / "a.py"])
    assert code_digest([tmp_path / "a.py"]) != code_digest([tmp_path / "b.py"])  # files have names


def test_variables_of_the_compilers_are_options() -> None:
    options = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCH_COMPILE_DYNAMIC_SOURCES": "L['x']", "TRITON_F32_DEFAULT": "x"}
    assert environment_options(options) == options
    assert environment_options({"CXX": "clang++"}) == {"CXX": "clang++"}


def test_the_processors_capability_that_torch_is_told_is_an_option() -> None:
    """Torch's C++ code is tiled for it, and torch's own key of a graph does not know it."""
    assert environment_options({"ATEN_CPU_CAPABILITY": "avx2"}) != environment_options({})


@pytest.mark.parametrize(
    "name",
    [
        "TORCHINDUCTOR_PROLOGUE_FUSION",
        "TORCHINDUCTOR_BENCHMARK_EPILOGUE_FUSION",
        "TRITON_DEBUG",  # has device assertions compiled in
        "TORCHINDUCTOR_DEBUG_COMPILE",  # compiles without optimisation
    ],
)
def test_a_variable_that_only_sounds_like_a_log_is_an_option(name: str) -> None:
    assert environment_options({name: "1"}) == {name: "1"}


def test_variables_that_change_no_code_are_none() -> None:
    others = {
        "TORCH_LOGS": "+dynamo",
        "TORCHINDUCTOR_CACHE_DIR": "/a",
        "TRITON_CACHE_DIR": "/b",
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "TORCH_COMPILE_DEBUG": "1",
        "TORCH_COMPILE_DEBUG_DIR": "/c",
        "TORCHINDUCTOR_AUTOHEURISTIC_LOG_PATH": "/d",
        "TORCHINDUCTOR_WORKER_LOGPATH": "/e",
        "TORCHINDUCTOR_MM_LOGGING_FILE": "/f",
        "OMP_NUM_THREADS": "1",
        "ETT_JOB": "ads-1",
        "HOME": "/root",
    }
    assert environment_options(others) == {}


@pytest.mark.parametrize("script", ["sleep 600", "exit 1"], ids=["blocks", "fails"])
def test_a_compiler_that_says_no_version_is_none(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f"#!/bin/sh\nexec {script}\n")
    wrapper.chmod(0o700)
    monkeypatch.setattr(platform_facts, "COMPILER_LIMIT_S", 0.2)
    assert software_facts({"CXX": str(wrapper)})["compiler"] is None


def test_torch_is_known_without_importing_it() -> None:
    import torch

    facts = torch_facts()
    assert facts["torch version"] == torch.__version__
    assert facts["torch git_version"] == torch.version.git_version
    assert facts.get("torch cuda") == torch.version.cuda


def test_gpus_and_their_driver_are_read_from_the_driver(tmp_path: Path) -> None:
    card = tmp_path / "driver/nvidia/gpus/0000:00:06.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\n")
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: NVIDIA 580.159.04\nGCC version: 15\n")
    (tmp_path / "cpuinfo").write_text("model name\t: A CPU\nflags\t\t: avx2 fma\n")
    facts = machine_facts(tmp_path)
    assert (facts["gpus"], facts["driver"]) == (["NVIDIA H200"], "NVRM version: NVIDIA 580.159.04")
    (tmp_path / "cpuinfo").write_text("model name\t: A CPU\nflags\t\t: avx2 fma avx512f\n")
    assert machine_facts(tmp_path)["cpu_flags"] != facts["cpu_flags"]
    assert machine_facts(tmp_path / "nothing")["gpus"] == []
