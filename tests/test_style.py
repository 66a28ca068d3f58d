"""The parts of the house style that a machine can hold (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_statements import statements_of

ROOT = Path(__file__).parents[1]
PRODUCT = ("ett", "checkpoint", "recovery", "compile_cache", "trainer", "dashboards", "alerts", "examples")
BANNED_NAMES = {"utils.py", "helpers.py", "misc.py", "common.py", "base.py"}
LONGEST_FILE, LONGEST_FUNCTION = 700, 80
# Examples of what is launched without a change: they save as PyTorch programs do.
PROGRAMS_OF_OTHERS = {"ddp_loop.py", "plain_loop.py"}
# `ett restore --into torch` writes what torch.load reads with weights_only=True, for programs that want that; we never
# read it back.
WRITES_FOR_TORCH = {"torch_export.py"}
# Where a broad except stands, and what would break without it, is said beside each (house style, section 7).
BROAD_EXCEPTS_ALLOWED = 6


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name.endswith(suffixes)]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def python_files(*tops: str) -> list[Path]:
    return [path for path in tracked(".py") if not tops or path.relative_to(ROOT).parts[0] in tops]


def calls(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call whose last name that is."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if name in text else ():
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function.rpartition(".")[2] == name:
                yield node.lineno, function


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_are_named_for_a_noun() -> None:
    assert not [shown(path) for path in python_files() if path.name in BANNED_NAMES]


def test_no_file_is_longer_than_one_can_read() -> None:
    too_long = {shown(p): n for p in python_files() if (n := len(p.read_text().splitlines())) > LONGEST_FILE}
    assert not too_long


def test_no_function_is_longer_than_a_screen() -> None:
    too_long = [
        f"{shown(path)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in statements_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert not too_long


def test_tests_never_sleep() -> None:
    wrong = [
        f"{shown(path)}:{line}"
        for path in python_files("tests")
        if "process" not in path.parts
        for line, name in calls(path, "sleep")
        if name in ("time.sleep", "sleep")
    ]
    assert not wrong


def test_nothing_of_ours_pickles() -> None:
    pattern = re.compile(r"\b(import pickle|from pickle|pickle\.|torch\.save\(|torch\.load\(|_object_list\(|_object\()")
    wrong = [
        f"{shown(path)}:{number}"
        for path in python_files(*PRODUCT)
        if path.name not in PROGRAMS_OF_OTHERS | WRITES_FOR_TORCH
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line) and not line.lstrip().startswith(("#", '"'))
    ]
    assert not wrong


def test_broad_excepts_are_few_and_explained() -> None:
    broad = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in python_files(*PRODUCT)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"except( Base)?(\s|\()*(Base)?Exception\b|except:", line)
    ]
    assert not [place for place in broad if "BLE001 - " not in place]
    assert len(broad) <= BROAD_EXCEPTS_ALLOWED, "\n".join(broad)


def test_no_todo_is_left_without_a_home() -> None:
    wrong = [
        f"{shown(path)}:{number}"
        for path in python_files(*PRODUCT)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX)\b(?! ?\((issue|\d))", line)
    ]
    assert not wrong


@pytest.mark.parametrize("suffix", [".md", ".toml", ".txt", ".py", ".yml", "Makefile", "run"])
def test_no_tracked_file_names_a_package_registrys_host(suffix: str) -> None:
    hosts = re.compile(
        "|".join(("py" + r"pi\.org", "pythonhosted" + r"\.org", "npm" + r"js\.(org|com)", "deb" + r"\.debian"))
    )
    assert not [shown(path) for path in tracked(suffix) if hosts.search(path.read_text(errors="replace"))]
