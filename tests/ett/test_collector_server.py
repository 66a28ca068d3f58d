"""What each request is answered, against the application itself: no socket, no clock."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the collector's libraries are the extra ett[server]")

from prometheus_client import generate_latest
from starlette.types import ASGIApp

from ett.collector import server
from ett.collector.access import access_policy
from ett.collector.batch import Block, encode
from ett.collector.body import MAX_SENT_BYTES
from ett.collector.intake import Intake
from ett.collector.own_figures import OwnFigures
from ett.collector.server import Parts, build_app
from ett.errors import Conflict, EttError
from ett.store import IngestResult, Rejected

TOKEN = "4f1c0d6e-ett-test-token"
FILE = "1/r0-h-1-b.jsonl"


@dataclass
class FakeStore:
    """Accepts lines that begin with `{`, each once; `trouble` is raised instead."""

    lines: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    trouble: EttError | None = None
    gate: threading.Event | None = None

    def ingest(self, job: str, file: str, lines: Iterable[bytes]) -> IngestResult:
        if self.gate is not None:
            self.gate.wait(300)
        if self.trouble is not None:
            raise self.trouble
        known = self.lines.setdefault((job, file), [])
        accepted = duplicate = 0
        rejected = []
        for index, line in enumerate(lines):
            if not line.startswith(b"{"):
                rejected.append(Rejected(line_index=index, code="bad_checksum", text="it does not match"))
            elif line in known:
                duplicate += 1
            else:
                known.append(line)
                accepted += 1
        return IngestResult(accepted=accepted, duplicate=duplicate, rejected=tuple(rejected))


@dataclass
class World:
    store: FakeStore
    figures: OwnFigures
    app: ASGIApp

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        return asyncio.run(call(self.app, method, path, body, headers))

    def post(self, *blocks: Block, **headers: str) -> tuple[int, dict[str, Any]]:
        status, _, text = self.ask("POST", "/v1/events", encode(blocks), **headers)
        return status, json.loads(text)

    def metric(self, line: str) -> float:
        found = [
            row.rsplit(" ", 1)[1]
            for row in generate_latest(self.figures.registry).decode().splitlines()
            if row.startswith(line)
        ]
        return float(found[0]) if found else 0.0


def make(token: str | None = None, is_ready: Callable[[], None] = lambda: None) -> World:
    store, figures = FakeStore(), OwnFigures()
    parts = Parts(
        intake=Intake(store, figures, lambda job: None),  # type: ignore[arg-type]
        figures=figures,
        render=lambda accept: (generate_latest(figures.registry), "text/plain"),
        render_jobs=lambda accept: (b"of jobs", "text/plain"),
        check_ready=is_ready,
        begin=lambda: None,
        end=lambda: None,
    )
    return World(store, figures, build_app(parts, access_policy("127.0.0.1", token, ())))


async def call(
    app: ASGIApp, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    given = {"host": "127.0.0.1:1"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1), "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }  # fmt: skip
    chunks = [body[i : i + 65536] for i in range(0, len(body), 65536)] or [b""]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not chunks:
            return {"type": "http.disconnect"}
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks) or "x-hangs-up" in given}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(m for m in sent if m["type"] == "http.response.start")
    text = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, text


def test_a_client_that_hangs_up_in_its_body_is_no_error_and_stores_nothing() -> None:
    world = make()
    status, _, _ = world.ask("POST", "/v1/events", encode([block(b'{"a":1}')]), x_hangs_up="yes")
    assert status == 400
    assert not world.store.lines


def block(*lines: bytes, job: str = "j", file: str = FILE) -> Block:
    return Block(job=job, file=file, lines=lines)


def test_a_batch_is_stored_line_by_line_and_counted() -> None:
    world = make()
    status, reply = world.post(block(b'{"a"}\n', b'{"b"}\n'), block(b'{"c"}\n', job="k"))
    assert (status, reply) == (200, {"accepted": 3, "duplicate": 0, "rejected": []})
    assert world.store.lines == {("j", FILE): [b'{"a"}\n', b'{"b"}\n'], ("k", FILE): [b'{"c"}\n']}
    assert world.metric('ett_collector_events_total{code="",result="accepted"}') == 3


def test_a_batch_sent_again_is_all_duplicates() -> None:
    world = make()
    world.post(block(b'{"a"}\n'))
    assert world.post(block(b'{"a"}\n')) == (200, {"accepted": 0, "duplicate": 1, "rejected": []})


def test_a_bad_line_does_not_lose_the_others() -> None:
    world = make()
    status, reply = world.post(block(b'{"a"}\n', b"torn\n", b'{"b"}\n'))
    assert (status, reply["accepted"]) == (200, 2)
    assert [(r["job"], r["file"], r["line"], r["code"]) for r in reply["rejected"]] == [("j", FILE, 1, "bad_checksum")]
    assert world.metric('ett_collector_events_total{code="bad_checksum",result="rejected"}') == 1


def test_gzip_is_the_same_batch() -> None:
    world = make()
    body = gzip.compress(encode([block(b'{"a"}\n')]))
    status, _, _ = world.ask("POST", "/v1/events", body, content_encoding="gzip")
    assert status == 200
    assert world.store.lines == {("j", FILE): [b'{"a"}\n']}


def test_a_malformed_batch_is_400_with_nothing_stored() -> None:
    world = make()
    status, _, text = world.ask("POST", "/v1/events", encode([block(b'{"a"}\n')]) + b"rubbish\n")
    assert (status, json.loads(text)["error"]["code"]) == (400, "malformed")
    assert world.store.lines == {}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"x" * (MAX_SENT_BYTES + 1), {}),
        (b"", {"content_length": str(MAX_SENT_BYTES + 1)}),
        (gzip.compress(b"\0" * (100 << 20), compresslevel=1), {"content_encoding": "gzip"}),
        (encode([block(*[b"{\n"] * 15_000), block(*[b"{\n"] * 15_000)]), {}),
    ],
    ids=["sent", "declared", "bomb", "lines"],
)
def test_what_is_over_a_limit_is_413(body: bytes, headers: dict[str, str]) -> None:
    world = make()
    status, _, text = world.ask("POST", "/v1/events", body, **headers)
    assert (status, json.loads(text)["error"]["code"]) == (413, "too_large")
    assert world.store.lines == {}


def test_a_store_that_cannot_take_it_is_503_with_a_time() -> None:
    world = make()
    world.store.trouble = Conflict("another process has been writing to /secret/path")
    status, headers, text = world.ask("POST", "/v1/events", encode([block(b'{"a"}\n')]))
    assert (status, headers["retry-after"]) == (503, "5")
    assert b"/secret/path" not in text


def test_more_batches_than_may_wait_are_429_with_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_WAITING", 2)
    world = make()
    world.store.gate = threading.Event()

    async def flood() -> list[int]:
        body = encode([block(b'{"a"}\n')])
        waiting = [asyncio.create_task(call(world.app, "POST", "/v1/events", body, {})) for _ in range(2)]
        await asyncio.sleep(0)
        while not all(task.get_coro() is not None for task in waiting):
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        refused = await call(world.app, "POST", "/v1/events", body, {})
        assert world.store.gate is not None
        world.store.gate.set()
        assert refused[1]["retry-after"] == "1"
        return [refused[0], *[(await task)[0] for task in waiting]]

    assert asyncio.run(flood()) == [429, 200, 200]


def test_another_name_in_host_is_refused() -> None:
    assert make().ask("GET", "/metrics", host="evil.example")[0] == 403


def test_a_browsers_page_can_post_nothing() -> None:
    status, _, _ = make().ask("POST", "/v1/events", encode([block(b'{"a"}\n')]), origin="http://127.0.0.1:1")
    assert status == 403


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/events"), ("GET", "/metrics"), ("GET", "/nothing")])
def test_everything_but_health_needs_the_token(method: str, path: str) -> None:
    world = make(token=TOKEN)
    status, headers, text = world.ask(method, path)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert TOKEN.encode() not in text
    assert world.ask(method, path, authorization="Bearer wrong")[0] == 401
    assert world.ask(method, path, authorization=f"Bearer {TOKEN}")[0] != 401


def test_health_is_open_under_any_name() -> None:
    world = make(token=TOKEN)
    assert [world.ask("GET", path, host="10.0.0.7")[0] for path in ("/healthz", "/readyz")] == [200, 200]


def test_a_store_that_does_not_answer_is_alive_but_not_ready() -> None:
    def fail() -> None:
        raise Conflict("locked")

    world = make(is_ready=fail)
    assert [world.ask("GET", path)[0] for path in ("/healthz", "/readyz")] == [200, 503]


def test_every_reply_carries_the_security_headers() -> None:
    world = make()
    for status, headers, _ in (
        world.ask("GET", "/metrics"),
        world.ask("GET", "/x"),
        world.ask("GET", "/metrics", host="e"),
    ):
        assert status in (200, 403, 404)
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_the_last_senders_clock_is_compared() -> None:
    world = make()
    world.post(block(b'{"a"}\n'), ett_sent_unix_s="100.0")
    assert world.metric("ett_collector_clock_skew_seconds") < -1e9
    world.post(block(b'{"a"}\n'), ett_sent_unix_s="soon")
    assert world.metric("ett_collector_clock_skew_seconds") < -1e9
