"""A collective that fails because another rank is gone: gloo names a socket, people need to hear of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ett.errors import LostPeer


@contextmanager
def peers_named() -> Iterator[None]:
    """Turn gloo's error about a socket into LostPeer: the cause stands in the log of the rank that ended first."""
    try:
        yield
    except RuntimeError as err:
        if "gloo" not in str(err):
            raise
        # "[file:line] Read error [address]: Connection reset by peer. This is typically caused by …"
        reason = str(err).splitlines()[0].partition("] ")[2].partition(". This is")[0]
        raise LostPeer(
            f"another rank ended or did not answer: {reason or err}",
            do="read the log of the rank that ended first",
        ) from err
