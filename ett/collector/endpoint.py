"""One POST to a collector, with the standard library alone; what its answer means for what was sent."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from ett.collector.batch import CONTENT_TYPE
from ett.errors import ConfigError

RETRYABLE = frozenset({0, 429, 502, 503, 504})  # 0: no answer, or not a whole one
SENT_HEADER = "Ett-Sent-Unix-S"
_MAX_REPLY_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """`status` 0: no answer, -1: none of a collector. `reply` is that of a 200. `retry_after_s` 0: none was said."""

    status: int
    reply: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    retry_after_s: float = 0.0

    @property
    def is_delivered(self) -> bool:
        return self.status == 200

    @property
    def is_worth_retrying(self) -> bool:
        return self.status in RETRYABLE


class Endpoint:
    """A collector at a base URL. One connection is kept and made again when it fails; not safe from two threads.

    Args:
        read_token: called for every connection, so that a token may change while an agent runs; None: no token.
    """

    def __init__(self, url: str, read_token: Callable[[], str | None] = lambda: None) -> None:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
            or parts.username
        ):
            raise ConfigError(f"endpoint {url!r}", expected="the base URL of a collector, such as https://ett.example/")
        try:
            self._port = parts.port
        except ValueError as err:
            raise ConfigError(f"endpoint {url!r}: {err}", expected="a port from 1 to 65535") from err
        self.url = url
        self._is_tls, self._host = parts.scheme == "https", parts.hostname
        self._path = parts.path.rstrip("/")
        self._read_token = read_token
        self._connection: http.client.HTTPConnection | None = None

    def post_events(self, body: bytes, timeout_s: float) -> Answer:
        """Send one batch and return what became of it; never raises for trouble on the way."""
        headers = {
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": "gzip",
            SENT_HEADER: f"{time.time():.3f}",
        }
        return self._request("POST", "/v1/events", gzip.compress(body, compresslevel=1), headers, timeout_s)

    def ask_ready(self, timeout_s: float) -> Answer:
        return self._request("GET", "/readyz", None, {}, timeout_s)

    def abort(self) -> None:
        """End a request that another thread waits for; it fails as if the connection had."""
        connection = self._connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _request(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float) -> Answer:
        token = self._read_token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            connection = self._connected(timeout_s)
            connection.request(method, self._path + path, body=body, headers=headers)
            response = connection.getresponse()
            text = response.read(_MAX_REPLY_BYTES)
            if response.will_close:
                self.close()
        except (OSError, http.client.HTTPException) as err:
            self.close()
            return Answer(status=0, why=f"{type(err).__name__}: {err}")
        return _answer(response.status, text, response.headers.get("Retry-After", ""))

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=timeout_s)
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection


@dataclass(kw_only=True, slots=True)
class Backoff:
    """How long to wait before the next try: doubles with every failure, with jitter; never less than was asked for."""

    first_s: float = 0.5
    longest_s: float = 60.0
    longest_asked_s: float = 300.0  # a server that asks for more is not believed
    draw: Callable[[], float] = random.random
    failures: int = 0

    def next_s(self, retry_after_s: float = 0.0) -> float:
        """Count a failure and return the wait: half to all of the doubled time, or a fleet would come at once."""
        full_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(full_s * (0.5 + 0.5 * self.draw()), min(retry_after_s, self.longest_asked_s))

    def reset(self) -> None:
        self.failures = 0


def _answer(status: int, text: bytes, retry_after: str) -> Answer:
    try:
        reply = json.loads(text)
    except ValueError:
        reply = None
    if status == 200 and not _is_reply(reply):
        return Answer(status=-1, why="the answer is none of a collector: is the endpoint right?")
    why = ""
    if status != 200:
        error = reply.get("error") if isinstance(reply, dict) else None
        said = str(error.get("fact") or "") if isinstance(error, dict) else ""
        said = "".join(c for c in said[:200] if c.isprintable())  # whoever answered, it goes to a terminal
        why = f"HTTP {status}{f': {said}' if said else ''}"
    after_s = _seconds(retry_after)
    return Answer(status=status, reply=reply if isinstance(reply, dict) else {}, why=why, retry_after_s=after_s)


def _seconds(retry_after: str) -> float:
    """What Retry-After asks for: a number of seconds or a date; 0 for anything else."""
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after[:9])
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0


def _is_reply(reply: object) -> bool:
    return isinstance(reply, dict) and (
        reply.get("status") == "ready"
        or (
            all(type(reply.get(n)) is int for n in ("accepted", "duplicate"))
            and isinstance(reply.get("rejected"), list)
        )
    )
