"""A store's file system at any fsspec URL: one that refuses a name that is taken, and what its failures mean."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ett.errors import AccessDenied, ConfigError, EttError, Unreachable
from ett.store_uri import shown_uri


def open_system(uri: str, field: str, **options: Any) -> tuple[Any, str]:
    """Return the file system of a checked uri, and the uri's path there.

    Args: field: of the configuration, that has the uri. options: of `url_to_fs`.
    Raises: ConfigError: its package is not installed (F004), or it replaces a name that is taken (F007). Unreachable.
    """
    import fsspec

    try:
        _check_creates(fsspec.get_filesystem_class(uri.partition("://")[0]), uri, field)
        system, root = fsspec.core.url_to_fs(uri, use_listings_cache=False, **options)
    except ImportError as err:
        raise ConfigError(
            f"{field} is {shown_uri(uri)!r}: {err}", do="install the package that it names", code="F004"
        ) from err
    except OSError as err:
        raise Unreachable(f"{shown_uri(uri)}: {type(err).__name__}: {err}", do="check the host in it") from err
    return system, root.rstrip("/")


def files_below(system: Any, path: str) -> dict[str, dict[str, Any]]:
    """Return name -> facts of every file below a folder; {} where there is none. Raises: OSError: it did not answer.

    fsspec's own `find` walks the folders and leaves out the ones whose listing fails: a store that is down would read
    as one without commits, and what it holds as what nobody needs. One that asks for all names at once says so.
    """
    if not _is_default(type(system), "find"):
        try:
            return dict(system.find(path, detail=True))
        except FileNotFoundError:
            return {}
    try:
        entries = system.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):  # it may go meanwhile
        return {}
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        name = str(entry["name"]).rstrip("/")
        if entry["type"] != "directory":
            found[name] = entry
        elif name != path:
            found |= files_below(system, name)
    return found


def store_failure(err: OSError, place: str) -> EttError:
    """Return the typed error of a failed request for `place`, as `os_failure` does for a path."""
    if isinstance(err, PermissionError):
        return AccessDenied(f"no permission for {place}: {err}", do="correct the credentials", code="P003")
    return Unreachable(f"{place}: {type(err).__name__}: {err}", code="S003")


def written_unix_s(facts: Mapping[str, Any]) -> float | None:
    """Return when a file was written, from what `info` or `find` say of it; None where they do not."""
    for key in ("LastModified", "last_modified", "updated", "mtime", "created"):
        value = facts.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def _check_creates(kind: Any, uri: str, field: str) -> None:
    """Refuse fsspec's default, which asks whether a name exists and then writes: no probe would notice that."""
    if _is_default(kind, "pipe_file"):
        raise ConfigError(
            f"{shown_uri(uri)}: fsspec's {kind.__name__} looks whether a name is free and then writes it, "
            "so two processes could both take it",
            expected="a store that refuses a name that is taken: a local folder, S3, GCS, Azure",
            do=f"set {field} to another store",
            code="F007",
        )


def _is_default(kind: Any, method: str) -> bool:
    """Return whether a class of file systems has fsspec's own, generic version of a method."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    parent = AsyncFileSystem if issubclass(kind, AsyncFileSystem) else AbstractFileSystem
    name = f"_{method}" if parent is AsyncFileSystem else method
    return getattr(kind, name) is getattr(parent, name)
