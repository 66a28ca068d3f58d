"""The HTTP side: `POST /v1/events`, `/metrics` and `/metrics/jobs`, `/healthz`, `/readyz`, behind one guard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ett.collector.access import AccessPolicy
from ett.collector.body import BodyTooLarge, read_limited
from ett.collector.intake import Intake
from ett.collector.own_figures import OwnFigures
from ett.errors import DataError, EttError

log = logging.getLogger(__name__)

BODY_WAIT_S = 30.0  # for a whole body to arrive
MAX_WAITING = 32  # batches read and not stored yet; 32 MiB as sent at most
RETRY_OVERLOAD_S, RETRY_STORE_S = 1, 5
SENT_HEADER = "ett-sent-unix-s"
_OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # a load balancer asks these by address and without a token
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the server is made of. `render` gives a body and its content type; `check_ready` raises if it is not."""

    intake: Intake
    figures: OwnFigures
    render: Callable[[str], tuple[bytes, str]]
    render_jobs: Callable[[str], tuple[bytes, str]]
    check_ready: Callable[[], None]
    begin: Callable[[], None]
    end: Callable[[], None]


def build_app(parts: Parts, access: AccessPolicy) -> ASGIApp:
    """Return the ASGI application; `parts.begin` and `parts.end` run with its lifespan."""
    routes = _Routes(parts)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await run_in_threadpool(parts.begin)
        yield
        routes.writer.shutdown(wait=True)
        await run_in_threadpool(parts.end)

    app = Starlette(
        routes=[
            Route("/v1/events", routes.events, methods=["POST"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/metrics/jobs", routes.metrics_of_jobs, methods=["GET"]),
            Route("/healthz", routes.healthz, methods=["GET"]),
            Route("/readyz", routes.readyz, methods=["GET"]),
        ],
        lifespan=lifespan,
    )
    return _Guard(app, access, parts.figures)


class _Guard:
    """Checks Host, Origin and token before a route sees the request; adds the security headers to every reply."""

    def __init__(self, app: ASGIApp, access: AccessPolicy, figures: OwnFigures) -> None:
        self._app, self._access, self._figures = app, access, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in _ROUTES else "other"

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._figures.requests.labels(route=route, status=str(message["status"])).inc()
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope["path"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        if path in _OPEN_PATHS:
            return None
        if not self._access.accepts_host(headers.get("host", "")):
            return _error(403, "host_not_allowed", "the Host header names another server", "--allow-host NAME adds one")
        if "origin" in headers:
            return _error(403, "origin_not_allowed", "browsers have nothing to send here", "")
        if not self._access.accepts_token(headers.get("authorization", "")):
            refused = _error(401, "unauthorized", "a token is needed", "Authorization: Bearer TOKEN")
            refused.headers["www-authenticate"] = "Bearer"
            return refused
        return None


_ROUTES = frozenset({"/v1/events", "/metrics", "/metrics/jobs", *_OPEN_PATHS})


class _Routes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._waiting = 0
        self.writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ett-store")

    async def events(self, request: Request) -> Response:
        if self._waiting >= MAX_WAITING:
            return _overloaded()
        try:
            async with asyncio.timeout(BODY_WAIT_S):
                body = await read_limited(request.stream(), _declared_bytes(request.headers))
        except TimeoutError:
            return _retry_later(503, "slow_body", f"the body took over {BODY_WAIT_S:g} s", RETRY_OVERLOAD_S)
        except BodyTooLarge as err:
            return _refused(413, "too_large", err)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        if self._waiting >= MAX_WAITING:
            return _overloaded()
        self._note_skew(request.headers)
        self._waiting += 1
        begun_s = time.monotonic()
        try:
            encoding = request.headers.get("content-encoding", "").strip().lower()
            loop = asyncio.get_running_loop()
            reply = await loop.run_in_executor(self.writer, self._parts.intake.take, body, encoding)
        except BodyTooLarge as err:
            return _refused(413, "too_large", err)
        except DataError as err:
            return _refused(400, "malformed", err)
        except EttError as err:
            log.error("a batch was not stored: %s", err)
            return _retry_later(503, "store_unavailable", "the store cannot take this now", RETRY_STORE_S)
        finally:
            self._waiting -= 1
            self._parts.figures.ingest_duration.labels(route="/v1/events").observe(time.monotonic() - begun_s)
        return JSONResponse(reply.plain())

    async def metrics(self, request: Request) -> Response:
        return await self._scraped(request, "/metrics", self._parts.render)

    async def metrics_of_jobs(self, request: Request) -> Response:
        return await self._scraped(request, "/metrics/jobs", self._parts.render_jobs)

    async def _scraped(self, request: Request, route: str, render: Callable[[str], tuple[bytes, str]]) -> Response:
        begun_s = time.monotonic()
        body, content_type = await run_in_threadpool(render, request.headers.get("accept", ""))
        self._parts.figures.query_duration.labels(route=route).observe(time.monotonic() - begun_s)
        return Response(body, headers={"content-type": content_type})

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(self, _: Request) -> Response:
        try:
            await run_in_threadpool(self._parts.check_ready)
        except EttError as err:
            log.warning("not ready: %s", err)
            return _retry_later(503, "not_ready", "the store does not answer", RETRY_STORE_S)
        return JSONResponse({"status": "ready"})

    def _note_skew(self, headers: Headers) -> None:
        try:
            self._parts.figures.clock_skew.set(float(headers.get(SENT_HEADER, "")) - time.time())
        except ValueError:
            return


def _declared_bytes(headers: Headers) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() else None


def _overloaded() -> Response:
    return _retry_later(429, "overloaded", f"{MAX_WAITING} batches wait to be stored", RETRY_OVERLOAD_S)


def _retry_later(status: int, code: str, fact: str, after_s: int) -> Response:
    reply = _error(status, code, fact, f"send the same batch again after {after_s} s")
    reply.headers["retry-after"] = str(after_s)
    return reply


def _refused(status: int, code: str, err: EttError) -> Response:
    return _error(status, code, err.fact, err.do, expected=err.expected)


def _error(status: int, code: str, fact: str, do: str, expected: str = "") -> Response:
    return JSONResponse({"error": {"code": code, "fact": fact, "expected": expected, "do": do}}, status_code=status)
