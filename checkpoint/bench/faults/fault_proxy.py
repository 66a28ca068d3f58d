"""An HTTP proxy in front of a store that delays, resets, tears, refuses, repeats and forgets; one request at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Fault = Literal[
    "reset",  # the connection breaks before the server sees the request
    "lost answer",  # the server acts, and the connection breaks before a byte of its answer
    "torn answer",  # half of the answer's body arrives
    "unavailable",  # 503 SlowDown, the server does not see the request
    "twice",  # the server sees the request twice, the client the second answer
    "held",  # the server sees the request only when `release` is called; the client's connection breaks at once
    "expired",  # 400 ExpiredToken
    "conflict",  # 409, the server does not see the request
    "conflict after acting",  # 409 although the server has acted
]
_ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>injected</Message></Error>'


@dataclass(frozen=True, slots=True)
class Request:
    number: int  # from 1
    method: str
    path: str  # with the query

    @property
    def is_put_of_commit(self) -> bool:
        return self.method == "PUT" and "/commits/" in self.path


Plan = Callable[[Request], Fault | None]


class FaultProxy:
    """Listens on a free port; `plan` says what happens to each request."""

    def __init__(self, upstream_port: int) -> None:
        self.plan: Plan = lambda request: None
        self.seen: list[Request] = []
        self._upstream = upstream_port
        self._held: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def release(self) -> list[bytes]:
        """Let the server see what was held, in order; return the first lines of its answers."""
        held, self._held = self._held, []
        return [self._run(self._forward(request)).partition(b"\r\n")[0] for request in held]

    def forget(self) -> None:
        """Begin anew: no faults, nothing seen, nothing held."""
        self.plan = lambda request: None
        self.seen, self._held = [], []

    def close(self) -> None:
        self._server.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            answer = await self._answer(reader, writer)
            if answer is None:
                writer.transport.abort()
                return
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """Return what the client gets, None: its connection breaks."""
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:] if line}
        if "expect" in fields:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        kept = [line for line in lines[1:] if line and line.partition(":")[0].lower() not in ("expect", "connection")]
        whole = "\r\n".join([lines[0], *kept, "Connection: close", "", ""]).encode("latin-1") + body
        method, path, _ = lines[0].split(" ")
        request = Request(len(self.seen) + 1, method, path)
        self.seen.append(request)
        return await self._with_fault(self.plan(request), whole)

    async def _with_fault(self, fault: Fault | None, request: bytes) -> bytes | None:
        match fault:
            case "reset":
                return None
            case "held":
                self._held.append(request)
                return None
            case "unavailable":
                return _error("503 Slow Down", "SlowDown")
            case "expired":
                return _error("400 Bad Request", "ExpiredToken")
            case "conflict":
                return _error("409 Conflict", "ConditionalRequestConflict")
        answer = await self._forward(request)
        match fault:
            case "lost answer":
                return None
            case "conflict after acting":
                return _error("409 Conflict", "ConditionalRequestConflict")
            case "twice":
                return await self._forward(request)
            case "torn answer":
                head, _, body = answer.partition(b"\r\n\r\n")
                return head + b"\r\n\r\n" + body[: len(body) // 2]
        return answer

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        writer.write(request)
        await writer.drain()
        answer = await reader.read(-1)
        writer.close()
        return answer


def _error(status: str, code: str) -> bytes:
    body = _ERROR.format(code=code).encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/xml", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + body
