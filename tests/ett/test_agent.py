"""The agent against scripted answers: what it repeats, what it gives up, how long it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.collector import spool as spool_module
from ett.collector.agent import Agent, AgentConfig
from ett.collector.batch import Block, decode
from ett.collector.endpoint import Answer, Backoff, Endpoint, _answer
from ett.collector.spool import Counts, Spool
from ett.errors import AccessDenied, ConfigError, Unreachable

RANK = "1/r0-h-2-b.jsonl"


class ScriptedEndpoint(Endpoint):
    """Answers from a list, then accepts everything; keeps what was accepted."""

    def __init__(self, *answers: int) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)
        self.accepted: list[Block] = []
        self.tries = 0

    def post_events(self, body: bytes, timeout_s: float) -> Answer:
        self.tries += 1
        status = self.answers.pop(0) if self.answers else 200
        blocks = decode(body)
        if status != 200:
            return Answer(status=status, why=f"HTTP {status}")
        self.accepted += blocks
        lines = sum(len(block.lines) for block in blocks)
        return Answer(status=200, reply={"accepted": lines, "duplicate": 0, "rejected": []})

    @property
    def lines(self) -> list[bytes]:
        return [line for block in self.accepted for line in block.lines]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    (tmp_path / "events" / "1").mkdir(parents=True)
    (tmp_path / "events" / RANK).write_bytes(b"a\nb\nc\n")
    spool = Spool("j", tmp_path / "events", tmp_path / "sync", "http://127.0.0.1:1")
    yield spool
    spool.close()


def agent_of(endpoint: Endpoint, spool: Spool, **config: Any) -> Agent:
    return Agent(endpoint, lambda: [spool], AgentConfig(**config), Backoff(first_s=0.0, longest_s=0.0))


@pytest.mark.parametrize("status", [0, 429, 502, 503, 504])
def test_what_may_get_better_is_sent_again(spool: Spool, status: int) -> None:
    endpoint = ScriptedEndpoint(status, status)
    agent = agent_of(endpoint, spool)
    assert agent.ship()
    assert (endpoint.tries, endpoint.lines) == (3, [b"a\n", b"b\n", b"c\n"])
    assert agent.counts == Counts(sent=3, accepted=3)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, AccessDenied),
        (403, AccessDenied),
        (400, Unreachable),
        (404, Unreachable),
        (500, Unreachable),
        (-1, Unreachable),
        (302, Unreachable),
    ],
)
def test_what_will_not_get_better_ends_the_agent_with_everything_kept(
    spool: Spool, status: int, error: type[Exception]
) -> None:
    endpoint = ScriptedEndpoint(status)
    with pytest.raises(error):
        agent_of(endpoint, spool).ship()
    assert endpoint.tries == 1
    assert not spool.is_drained


def test_a_batch_that_is_too_large_is_halved_until_it_fits(spool: Spool) -> None:
    endpoint = ScriptedEndpoint(413)
    assert agent_of(endpoint, spool).ship()
    assert [len(block.lines) for block in endpoint.accepted] == [1, 1, 1]


def test_a_single_line_that_is_too_large_is_passed_over(spool: Spool) -> None:
    endpoint = ScriptedEndpoint(413, 413)
    agent = agent_of(endpoint, spool)
    assert agent.ship()
    assert endpoint.lines == [b"b\n", b"c\n"]
    assert agent.counts == Counts(sent=3, accepted=2, unsendable=1)


def test_a_collector_that_stays_away_is_given_up_after_the_time(spool: Spool) -> None:
    with pytest.raises(Unreachable, match="took no events for 0 s"):
        agent_of(ScriptedEndpoint(*[503] * 9), spool, give_up_after_s=0.0).ship()
    assert not spool.is_drained


def test_the_order_to_end_stops_the_waiting_and_flushes_once_more(spool: Spool) -> None:
    endpoint = ScriptedEndpoint(503)
    agent = Agent(endpoint, lambda: [spool], AgentConfig(shutdown_flush_s=5.0), Backoff(first_s=0.01, longest_s=0.01))
    agent.request_stop()
    assert agent.run()
    assert endpoint.lines == [b"a\n", b"b\n", b"c\n"]


def test_the_last_flush_ends_in_time_where_nothing_answers(spool: Spool) -> None:
    agent = Agent(ScriptedEndpoint(*[0] * 99), lambda: [spool], AgentConfig(shutdown_flush_s=0.0), Backoff())
    agent.request_stop()
    assert not agent.run()
    assert not spool.is_drained


def test_a_waiting_agent_ends_when_it_is_told(spool: Spool) -> None:
    agent = Agent(
        ScriptedEndpoint(*[503] * 99),
        lambda: [spool],
        AgentConfig(shutdown_flush_s=0.0),
        Backoff(first_s=600.0, longest_s=600.0),
    )
    running = threading.Thread(target=agent.run)
    running.start()
    agent.request_stop()
    running.join(timeout=300)
    assert not running.is_alive()


@pytest.mark.slow
@given(st.floats(0, 1), st.integers(0, 40), st.floats(0, 10_000))
def test_a_wait_is_bounded_and_never_less_than_was_asked(draw: float, failures: int, asked_s: float) -> None:
    backoff = Backoff(draw=lambda: draw, failures=failures)
    wait_s = backoff.next_s(asked_s)
    assert min(asked_s, backoff.longest_asked_s) <= wait_s <= max(backoff.longest_s, backoff.longest_asked_s)
    assert wait_s >= min(backoff.longest_s, backoff.first_s * 2.0 ** min(failures, 30)) / 2


def test_waits_double_and_start_over_after_a_success() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    assert [backoff.next_s() for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


@pytest.mark.parametrize(
    "url", ["", "ftp://x/", "http://", "http://user:secret@host/", "http://h:99999/", "http://h/?q", "host:80"]
)
def test_an_endpoint_that_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Endpoint(url)


@pytest.mark.parametrize(("said", "expected_s"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("-3", 0.0)])
def test_retry_after_is_a_number_of_seconds(said: str, expected_s: float) -> None:
    assert _answer(503, b"{}", said).retry_after_s == expected_s


def test_retry_after_may_be_a_date() -> None:
    now_s = time.time()
    assert 0 < _answer(503, b"{}", formatdate(now_s + 1000, usegmt=True)).retry_after_s <= 1000
    assert _answer(503, b"{}", formatdate(now_s - 1000, usegmt=True)).retry_after_s == 0


def test_what_a_server_says_cannot_steer_a_terminal() -> None:
    answer = _answer(400, b'{"error": {"fact": "\\u001b[2Jbad"}}', "")
    assert answer.why == "HTTP 400: [2Jbad"


def test_a_job_that_was_removed_stops_no_other(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / RANK).write_bytes(b"x\n")
    endpoint = ScriptedEndpoint()

    def spools() -> Iterator[Spool]:
        (tmp_path / "events" / RANK).unlink()
        spool.look = lambda: spool._limits.update({RANK: 6})  # type: ignore[method-assign]
        yield spool
        yield Spool("k", tmp_path / "other", tmp_path / "sync2", "http://127.0.0.1:1")

    assert Agent(endpoint, spools, AgentConfig(), Backoff()).ship()
    assert endpoint.lines == [b"x\n"]


def test_a_full_disk_under_the_state_only_repeats(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool_module, "write_json", full)
    endpoint = ScriptedEndpoint()
    assert agent_of(endpoint, spool).ship()
    assert spool.is_drained
