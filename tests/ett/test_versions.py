"""Versions are known where ett is installed, and where it is only a source tree on the path."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from ett.versions import ett_version, version_of

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_version_is_the_projects_and_says_whether_it_is_installed() -> None:
    assert ett_version() == (f"{VERSION}+source" if version_of("ett") is None else VERSION)


def test_a_missing_package_has_no_version() -> None:
    assert version_of("no-such-package-of-ours") is None


def test_a_source_tree_that_nobody_installed_has_a_version(tmp_path: Path) -> None:
    # -S leaves site-packages, and with it the installation's metadata, out.
    probe = "import sys; sys.path.insert(0, sys.argv[1]); from ett.versions import ett_version; print(ett_version())"
    command = [sys.executable, "-S", "-c", probe, str(tmp_path)]
    (tmp_path / "ett").mkdir()
    for name in ("ett/versions.py", "ett/__init__.py", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (f"{VERSION}+source", "")
