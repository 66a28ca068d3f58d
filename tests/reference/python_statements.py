"""The statements of a source, for tests that walk the whole tree's."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the tree and every statement within, no expression: a tenth of the nodes."""
    pending = [tree]
    while pending:
        yield (node := pending.pop())
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending += getattr(node, part, ())
