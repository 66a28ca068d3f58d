"""Recipes and site files as they are read: TOML of a bounded size, and the line that each key stands on."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from ett.errors import AccessDenied, ConfigError, NotFound, UsageError
from ett.toml_lines import key_lines

# A thousand times what a recipe has: a device or a log that was named by mistake must not fill the memory.
MOST_BYTES = 4 << 20
_MISSING = {
    "recipe": "check the path; examples/criteo.toml is one to copy",
    "site file": "check --config and $ETT_CONFIG",
}


def read_toml(path: Path, what: Literal["recipe", "site file"]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a file's tree, and the first line (from 1) of every table and key by dotted name.

    Raises: NotFound, AccessDenied, UsageError (a folder), ConfigError (too large, not UTF-8, no TOML).
    """
    text = _bounded_text(path, what)
    try:
        return tomllib.loads(text), key_lines(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise ConfigError(f"{path}: {err}", expected="valid TOML in UTF-8", do="correct that line") from err


def _bounded_text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as err:
        raise NotFound(f"{what} {path} does not exist", do=_MISSING[what]) from err
    except IsADirectoryError as err:
        raise UsageError(f"{what} {path} is a folder", expected="a TOML file") from err
    except PermissionError as err:
        raise AccessDenied(f"{what} {path} cannot be read: {err.strerror}", do="check its permissions") from err
    except OSError as err:
        raise UsageError(f"{what} {path} cannot be read: {err.strerror}", expected="a TOML file") from err
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{what} {path} has more than {MOST_BYTES >> 20} MiB", expected="a TOML file of a few KiB")
    try:
        return data.decode()
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: byte {err.start} is not UTF-8", expected="a TOML file in UTF-8") from err
