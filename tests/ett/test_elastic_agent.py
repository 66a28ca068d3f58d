"""The agent's own decisions, without processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from ett.elastic_agent import SupervisedAgent
from ett.failure import RankExit


def test_a_rank_that_fails_between_our_look_and_torchs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    agent = object.__new__(SupervisedAgent)
    gone = RankExit(rank=0, code=-9)
    looks = iter([[], [gone]])
    agent._job = SimpleNamespace(  # type: ignore[assignment]
        beat=lambda: None,
        stop=SimpleNamespace(requested=None),
        end_children=lambda: None,
        fail_attempt=lambda failed, order: told.append((failed, order)) or "failed",
    )
    agent._pcontext = SimpleNamespace(close=lambda *_: None)  # type: ignore[assignment]
    monkeypatch.setattr(agent, "_exits", lambda _: next(looks))
    monkeypatch.setattr(agent, "_exit_order", lambda: [0])
    monkeypatch.setattr(agent, "_allow_restart", lambda: None)
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda *_: RunResult(state=WorkerState.FAILED))
    assert agent._monitor_workers(SimpleNamespace()).state == WorkerState.FAILED  # type: ignore[arg-type]
    assert told == [([gone], [0])]
    assert agent.outcome == "failed"
