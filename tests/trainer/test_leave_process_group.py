"""A process group is left in time, whatever its peers and devices do."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ett.checkpoint import ranks as checkpoint_ranks
from ett.checkpoint.ranks import GlooRanks
from ett.trainer.comm import process_group


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A group whose peers never answer: to close it takes until the end of the test."""
    let_go = threading.Event()
    monkeypatch.setattr(process_group, "LEAVE_S", 0.01)
    monkeypatch.setattr(checkpoint_ranks, "LEAVE_S", 0.01)
    yield SimpleNamespace(is_initialized=lambda: True, destroy_process_group=lambda *_: let_go.wait(60))
    let_go.set()


def test_a_group_that_does_not_close_does_not_hold_the_rank(
    hung: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_group, "dist", hung)
    with caplog.at_level(logging.WARNING):
        assert not process_group.leave_process_group()
    assert "was not closed within" in caplog.text


def test_a_group_that_closes_is_left(hung: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hung.destroy_process_group = lambda: None
    monkeypatch.setattr(process_group, "dist", hung)
    monkeypatch.setattr(process_group, "LEAVE_S", 60.0)
    assert process_group.leave_process_group()


def test_the_group_of_saves_does_not_hold_the_rank_either(hung: Any, caplog: pytest.LogCaptureFixture) -> None:
    ranks = GlooRanks.__new__(GlooRanks)
    ranks._dist, ranks.group = hung, object()  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        ranks.close()
    assert "was not closed within" in caplog.text
    assert ranks.group is None


def test_what_closing_raises_is_raised(hung: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("connection reset")

    hung.destroy_process_group = fail
    monkeypatch.setattr(process_group, "dist", hung)
    with pytest.raises(RuntimeError, match="connection reset"):
        process_group.leave_process_group()
