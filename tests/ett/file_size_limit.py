"""A limit to how long files may become that this process writes: a full disk, for the length of a block."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """No fixture: pytest writes between a test and the end of its fixtures, maybe into a file that is longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
