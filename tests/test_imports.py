"""Dependencies point one way (DESIGN section 1), and light modules stay light."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_statements import statements_of

ROOT = Path(__file__).parents[1]
FOLDERS = ("checkpoint", "recovery", "compile_cache", "trainer", "dashboards", "alerts")
# Metrics and attributes have names such as "ett.checkpoint.step", which are no modules.
NAMES_OF_TELEMETRY = ("metric_names.py", "attribute_names.py")
BARE_NAME = re.compile(rf"(from|import)\s+(\w+\s*,\s*)*({'|'.join(FOLDERS)})\b")  # in prose, too
MAY_IMPORT = {
    "ett": set[str](),
    "compile_cache": {"ett"},
    "checkpoint": {"ett"},
    "recovery": {"ett", "checkpoint", "compile_cache"},
    "trainer": {"ett", "checkpoint", "compile_cache", "recovery"},
    "dashboards": {"ett"},
    "alerts": {"ett"},
}


def sources() -> Iterator[tuple[str, Path]]:
    for folder in MAY_IMPORT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder != "ett" or not set(path.relative_to(ROOT / "ett").parts) & set(FOLDERS):
                yield folder, path


@functools.cache
def imported_modules(path: Path) -> list[tuple[int, str]]:
    return list(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; say ett.…"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}" if node.module == "ett" else str(node.module)


def folder_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "ett":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "ett"


def may_be_wrong(folder: str, path: Path) -> bool:
    """Tell whether its text has a name that its imports must not have: few do, and only they are parsed."""
    names = [f"ett.{other}" for other in FOLDERS if other != folder and other not in MAY_IMPORT[folder]]
    text = path.read_text()
    return any(name in text for name in (*names, "from ett import", "from ."))


def test_imports_follow_the_one_way_order() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for folder, path in sources()
        if may_be_wrong(folder, path)
        for line, module in imported_modules(path)
        if (target := folder_of(module)) not in (None, folder) and target not in MAY_IMPORT[folder]
    ]
    assert not wrong


def test_no_source_imports_a_folder_by_its_bare_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in [*(p for _, p in sources()), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/**/*.py")]
        if BARE_NAME.search(path.read_text())
        for line, module in imported_modules(path)
        if module.split(".")[0] in FOLDERS
    ]
    assert not wrong


def test_strings_that_name_modules_above_ett_stand_in_one_file() -> None:
    named = tuple(f"ett.{folder}." for folder in FOLDERS)
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} names {node.value}"
        for folder, path in sources()
        if folder == "ett" and path.name not in ("seams.py", *NAMES_OF_TELEMETRY)
        if any(name in path.read_text() for name in named)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(named)
    ]
    assert not wrong


@pytest.mark.parametrize("module", ["ett", "ett.cli", "ett.recipe", "ett.checkpoint.config", "ett.trainer.recipe"])
def test_light_modules_import_neither_torch_nor_rich(module: str) -> None:
    heavy = "{'torch', 'rich', 's3fs', 'opentelemetry', 'prometheus_client'}"
    probe = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_refuses_to_load_under_its_bare_name(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert f"import this package as ett.{folder}" in done.stderr
