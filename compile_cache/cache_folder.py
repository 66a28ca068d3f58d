"""torch's cache folder of one process's host: what lies in it into a pack, and what a pack has into it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from ett.compile_cache.cache_paths import identity, is_allowed

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_files(folder: Path, known: Collection[str], most_bytes: int) -> dict[str, bytes] | None:
    """Return the files that a pack may have, by path; links, locks and all else are left out.

    Args:
        known: identities (`cache_paths.identity`) of what need not be read.
        most_bytes: of all together.
    Returns: None where there is more than most_bytes.
    """
    found: dict[str, bytes] = {}
    total = 0
    for path in allowed_paths(folder):
        if identity(path) in known:
            continue
        data = _read_plain(folder / path)
        if data is None:
            continue
        total += len(data)
        if total > most_bytes:
            return None
        found[path] = data
    return found


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that are not there yet, each whole or not at all; the folder is this user's alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made: set[Path] = set()
    for path, data in files.items():
        assert is_allowed(path), path
        final = folder / path
        if final.parent not in made:
            final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            made.add(final.parent)
        if final.exists():
            continue
        temporary = final.with_name(f".{secrets.token_hex(8)}.tmp")
        temporary.write_bytes(data)
        temporary.replace(final)


def allowed_paths(folder: Path) -> list[str]:
    """Return the paths of all that a pack may have of this folder, sorted."""
    names = (
        os.path.relpath(os.path.join(top, name), folder).replace(os.sep, "/")
        for top, _, files in os.walk(folder)
        for name in files
    )
    return sorted(name for name in names if is_allowed(name))


def _read_plain(path: Path) -> bytes | None:
    """Return the bytes of a file; None for what is a link, is no file, or has gone."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
