"""Ranks talk in one place: trainer/comm/."""

from __future__ import annotations

import ast
from pathlib import Path

TRAINER = Path(__file__).parents[2] / "trainer"


def test_only_comm_uses_torch_distributed() -> None:
    users = {
        path.relative_to(TRAINER).parts[0]
        for path in TRAINER.rglob("*.py")
        if "torch" in (text := path.read_text()) and "distributed" in text
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Import) and any(a.name.startswith("torch.distributed") for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"))
        or (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed")
    }
    assert users == {"comm"}
