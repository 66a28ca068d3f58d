"""A folder as a bucket behind a proxy that caps each connection: two processes of the benchmark's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ett.errors import Unreachable

_END_S = 10.0


@contextmanager
def capped_store(folder: Path, bytes_per_s: float) -> Iterator[str]:
    """Yield the url of the bucket `bench`, whose keys are the names in `folder`. Raises: Unreachable."""
    with ExitStack() as stack:
        port = stack.enter_context(_process("folder_bucket", str(folder)))
        port = stack.enter_context(_process("capped_proxy", port, str(bytes_per_s)))
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[str]:
    """Run a module of this folder until the context ends; yield the port that it prints."""
    command = [sys.executable, "-m", f"ett.checkpoint.bench.{module}", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise Unreachable(f"{module} did not start: it ended with {process.wait(_END_S)}")
        yield port
    finally:
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
