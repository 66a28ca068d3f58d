"""A collective that fails because a rank is gone says so; an error of another kind stays what it is."""

from __future__ import annotations

import pytest

from ett.checkpoint.lost_peer import peers_named
from ett.errors import LostPeer

GLOO = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:19855. This is "
    "typically caused by a remote worker crashing.\nmore"
)


def test_gloos_socket_error_becomes_a_lost_peer() -> None:
    with pytest.raises(LostPeer) as caught, peers_named():
        raise RuntimeError(GLOO)
    assert caught.value.fact == "another rank ended or did not answer: Connection closed by peer [127.0.0.1]:19855"


def test_another_error_is_left_alone() -> None:
    with pytest.raises(RuntimeError, match="shape"), peers_named():
        raise RuntimeError("shape mismatch")
