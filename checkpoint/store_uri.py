"""Which kind of store a checkpoint uri names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ett.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def check_uri(uri: str, field: str = "checkpoint.uri") -> None:
    """Raise ConfigError unless `uri` is a local path or a file:// uri; "" passes."""
    found = _SCHEME.match(uri)
    if found and found[1].lower() != "file":
        raise ConfigError(
            f"{field} is {uri!r}: no store for {found[1]!r}", expected="a local folder or a file:// uri", code="F004"
        )
    if found and urlsplit(uri).netloc not in ("", "localhost"):
        raise ConfigError(f"{field} is {uri!r}", expected="file:///absolute/path", code="F004")


def local_path(uri: str) -> Path:
    """Return the absolute folder that a checked uri names."""
    path = unquote(urlsplit(uri).path) if _SCHEME.match(uri) else uri
    return Path(path).expanduser().absolute()
