"""What a failed call of the operating system means to a user: no rights, no space, or a device that fails."""

from __future__ import annotations

import errno
from pathlib import Path

from ett.errors import AccessDenied, ConfigError, EttError, Unreachable


def os_failure(err: OSError, path: Path | str, *, elsewhere: str) -> EttError:
    """Return the typed error of a failed call on `path`.

    Args:
        elsewhere: the setting that names another place, such as "checkpoint.uri".
    """
    reason = (err.strerror or str(err)).lower()
    if err.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return AccessDenied(
            f"no permission for {path}: {reason}",
            do=f"give this user access, or choose another place ({elsewhere})",
        )
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unreachable(
            f"no space left for {path}: {reason}",
            do=f"free space, or choose a larger disk ({elsewhere})",
            code="S002",
        )
    if err.errno == errno.ENOTDIR:
        return ConfigError(
            f"{err.filename or path}: this, or a part of it, is no folder",
            do=f"remove it, or choose another place ({elsewhere})",
            code="F004",
        )
    if err.errno == errno.ENAMETOOLONG:
        text = str(path)
        return ConfigError(
            f"a name of {len(text)} characters is too long for this file system: {text[:60]}…",
            expected="255 bytes a name at most",
            do=f"choose a shorter one ({elsewhere})",
        )
    return Unreachable(f"input/output failed on {path}: {reason}", do="check the disk, then try again", code="S003")
