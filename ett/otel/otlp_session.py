"""The HTTP session of OpenTelemetry's exporters, which keeps what the receiver said. Importing this imports requests.

The SDK retries 429, 502, 503 and 504 (after Retry-After) and lost connections, within its timeout; it reports neither a
status nor a partial success, and takes a redirect for a success.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import Any

import requests

# A partial success is a number and a sentence.
_MAX_BODY_BYTES = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The last answer: a status and its body, or why there was none."""

    status: int | None
    text: str
    body: bytes = b""

    @property
    def is_ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class WatchedSession(requests.Session):
    """`last_reply` is of the newest request; None before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.last_reply: Reply | None = None

    def request(self, method: str, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs["stream"] = True
        timeout = kwargs.get("timeout")
        until_s = time.monotonic() + (timeout if isinstance(timeout, int | float) else 60.0)
        try:
            response = super().request(method, url, *args, **kwargs)
            body = _body(response, until_s)
        except requests.RequestException as err:
            self.last_reply = Reply(status=None, text=_why(err))
            raise
        self.last_reply = Reply(status=response.status_code, text=response.reason or "", body=body)
        return _with_body(response, body)


def _body(response: requests.Response, until_s: float) -> bytes:
    body = b""
    with response:
        for chunk in response.iter_content(4_096):
            body += chunk
            if len(body) > _MAX_BODY_BYTES:
                return body[:_MAX_BODY_BYTES]
            if time.monotonic() > until_s:
                raise requests.ReadTimeout("the answer did not end in time")
    return body


def _with_body(response: requests.Response, body: bytes) -> requests.Response:
    """The same answer with what was read of its body, so that nobody reads an unbounded rest."""
    bounded = requests.Response()
    bounded.status_code, bounded.reason, bounded.url = response.status_code, response.reason, response.url
    bounded.headers = response.headers
    bounded.raw = io.BytesIO(body)
    return bounded


def _why(err: requests.RequestException) -> str:
    """One of few sentences: an exception's own text may hold a URL or a header."""
    if isinstance(err, requests.Timeout):
        return "it did not answer in time"
    if isinstance(err, requests.exceptions.SSLError):
        return "its TLS certificate was not accepted"
    if isinstance(err, requests.ConnectionError):
        return "no connection could be made, or it was lost"
    return type(err).__name__
