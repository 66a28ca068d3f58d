"""Which versions run here, also where ett is a source tree on the path that nobody installed."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def version_of(package: str) -> str | None:
    """Return the installed version of a package, without importing it; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def ett_version() -> str:
    """Return ett's version: of the installation, else of the source tree, marked "+source"."""
    if (installed := version_of("ett")) is not None:
        return installed
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    if not project.is_file():
        return "unknown"
    return f"{tomllib.loads(project.read_text())['project']['version']}+source"
