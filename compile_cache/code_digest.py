"""What a source file means to a compiler: a digest that comments, blank lines and docstrings leave alone."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_digest(paths: Iterable[Path]) -> str:
    """Return a digest of source files, in the order of their names; where they lie is of no influence.

    Raises: OSError, SyntaxError: a file cannot be read, or is no Python.
    """
    sources = sorted((path.name, _meaning(path)) for path in paths)
    return hashlib.sha256(repr(sources).encode()).hexdigest()


def _meaning(path: Path) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
