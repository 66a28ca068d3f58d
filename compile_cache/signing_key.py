"""The key that packs are signed with: whoever has it may put code into the processes that read the cache."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ett.errors import AccessDenied, ConfigError, NotFound
from ett.job_folder import ett_home
from ett.os_failure import os_failure

VARIABLE = "ETT_COMPILE_CACHE_KEY"
FILE = "compile-cache.key"
_LEAST_BYTES = 16
_MADE_BYTES = 32


def signing_key(key_file: str, environ: Mapping[str, str], *, may_make: bool = True) -> bytes:
    """Return the key of $ETT_COMPILE_CACHE_KEY, else of `key_file`, else that of $ETT_HOME, made where there is none.

    Raises: ConfigError: it is too short. AccessDenied: others than the owner can read or write the file. NotFound:
        there is none, and none may be made. EttError: the file cannot be read or made.
    """
    if VARIABLE in environ:
        return _long_enough(environ[VARIABLE].strip().encode(), f"${VARIABLE}")
    path = Path(key_file).expanduser() if key_file else ett_home(environ) / FILE
    try:
        if may_make and not key_file:
            _make(path)
        return _long_enough(_read(path), str(path))
    except FileNotFoundError as err:
        raise NotFound(
            f"there is no signing key {path}",
            expected=f"the key that packs are signed with: in ${VARIABLE}, or in a file",
            do="--key-file FILE, or compile.key_file in a recipe",
        ) from err
    except OSError as err:
        raise os_failure(err, path, elsewhere=f"compile.key_file, ${VARIABLE}") from err


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise AccessDenied(
                f"{path} is readable or writable by others (mode {mode:o})",
                expected="mode 600: who has this key can run code in every process that reads the cache",
                do=f"chmod 600 {path}, after a look at who had it; a new key makes all packs unsigned",
            )
        return file.read().strip()


def _make(path: Path) -> None:
    """Make a key, whole or not at all; of several processes that make one, the first wins."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(_MADE_BYTES).encode())
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(descriptor)
        temporary.unlink()


def _long_enough(key: bytes, where: str) -> bytes:
    if len(key) < _LEAST_BYTES:
        raise ConfigError(f"the signing key in {where} has {len(key)} bytes", expected=f"at least {_LEAST_BYTES}")
    return key
