"""S3 servers for tests: moto's, in memory, and SeaweedFS; both from `make peers`, on ports that the kernel chose."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ett.checkpoint.s3_client import RetryPolicy, S3Client
from ett.checkpoint.s3_store import S3Store

SERVERS = Path(__file__).parents[2] / ".venv" / "s3"
KEYS = {"key": "testing", "secret": "testing12345"}
BUCKET = "bucket-of-tests"
_CLIENTS: dict[str, S3Client] = {}
QUICK = RetryPolicy(attempts=4, first_wait_s=0.01, longest_wait_s=0.05, connect_s=5, answer_s=20)
_MOTO = """
import sys, threading, os
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
import logging
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # ends with the tests
server.serve_forever()
"""


@dataclass(frozen=True, slots=True)
class S3Server:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self) -> str:
        """Create the bucket of the tests and return its name; a session takes long to make, so they share it."""
        client = s3_store(self.url).client
        client.run(lambda: client.request("create_bucket"))
        return BUCKET


def options(url: str) -> dict[str, Any]:
    return {**KEYS, "endpoint_url": url, "client_kwargs": {"region_name": "us-east-1"}}


def s3_store(url: str, prefix: str | None = None) -> S3Store:
    """Return a store in a folder of its own, or the one named; those of one url share a session."""
    store = S3Store(f"s3://{BUCKET}/{prefix or uuid4().hex}", policy=QUICK, options=options(url))
    store.client = _CLIENTS.setdefault(url, store.client)
    return store


@contextmanager
def moto_server() -> Iterator[S3Server]:
    if not (SERVERS / "moto").is_dir():
        pytest.skip("moto is not installed: make peers")
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(SERVERS)]))
    process = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield S3Server(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()
