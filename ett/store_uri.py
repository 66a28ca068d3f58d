"""Which kind of store a uri names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ett.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_USER_INFO = re.compile(r"(?<=://)[^/]*@")
_CONTAINER = re.compile(r"(az|abfss?)://[^/:@]*@[^/@]*(/|$)", re.IGNORECASE)  # Azure's: part of the place
S3_SCHEMES = ("s3", "s3a")
CHECKPOINTS = "checkpoint.uri"  # the setting that most uris are of


def check_uri(uri: str, field: str = CHECKPOINTS) -> None:
    """Raise ConfigError unless `uri` is a local path, a file:// uri or one of a scheme of fsspec; "" passes."""
    scheme = scheme_of(uri)
    if scheme is None:
        return
    if scheme == "file":
        if urlsplit(uri).netloc not in ("", "localhost"):
            raise ConfigError(f"{field} is {shown_uri(uri)!r}", expected="file:///absolute/path", code="F004")
        return
    import fsspec

    if scheme not in fsspec.available_protocols() and scheme not in fsspec.registry:
        raise ConfigError(
            f"{field} is {shown_uri(uri)!r}: no store for {scheme!r}",
            expected="a local folder, s3://bucket/folder, or another URL that fsspec knows",
            code="F004",
        )


def scheme_of(uri: str) -> str | None:
    """Return the scheme of a uri in lower case; None: it is a local path."""
    found = _SCHEME.match(uri)
    return found[1].lower() if found else None


def shown_uri(uri: str) -> str:
    """Return a uri without what may be a password."""
    return uri if _CONTAINER.match(uri) else _USER_INFO.sub("", uri)


def is_local(uri: str) -> bool:
    return scheme_of(uri) in (None, "file")


def local_path(uri: str) -> Path:
    """Return the absolute folder that a checked local uri names. Raises: ConfigError: `~somebody` is nobody."""
    path = unquote(urlsplit(uri).path) if _SCHEME.match(uri) else uri
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as err:
        raise ConfigError(f"{uri!r} begins in the home of a user that this host does not know") from err
