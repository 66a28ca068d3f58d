"""Widening the public API is a visible diff: every package's __all__ is compared with tests/public_api.txt."""

from __future__ import annotations

import importlib
from pathlib import Path

EXPECTED = Path(__file__).parent / "public_api.txt"
PACKAGES = ("ett", "ett.checkpoint", "ett.recovery", "ett.trainer", "ett.compile_cache", "ett.dashboards", "ett.alerts")


def public_names() -> list[str]:
    names: list[str] = []
    for package in PACKAGES:
        exported = getattr(importlib.import_module(package), "__all__", [])
        assert list(exported) == sorted(exported), f"{package}.__all__ is not sorted"
        names += [f"{package}.{name}" for name in exported]
    return names


def test_public_names_are_the_checked_in_list() -> None:
    assert public_names() == EXPECTED.read_text().split()


def test_every_public_name_can_be_imported() -> None:
    for name in EXPECTED.read_text().split():
        package, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(package), attribute) is not None
