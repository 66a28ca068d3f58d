"""The statements of a source, for tests that walk the whole tree's."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def statements_of(path: Path) -> list[ast.AST]:
    """The statements of a file, parsed once in a process."""
    return list(statements(ast.parse(path.read_text())))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the tree and every statement within, no expression: a tenth of the nodes."""
    pending = [tree]
    while pending:
        yield (node := pending.pop())
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, part, ())
