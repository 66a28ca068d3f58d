"""A folder as a bucket of S3, for reading only: a server that costs little, so that the reader is what is measured.

As a program, `python -m ett.checkpoint.bench.folder_bucket FOLDER` prints its port and ends with its standard input.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_WHEN = "2026-01-01T00:00:00.000Z"


def _handler(root: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._give(with_body=False)

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if "list-type" in (query := parse_qs(asked.query)):
                self._listed(query.get("prefix", [""])[0])
            else:
                self._give(with_body=True)

        def _give(self, *, with_body: bool) -> None:
            path = root / unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]  # without the bucket
            if not path.is_file():
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
                return
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                first, last = _range(self.headers.get("Range", ""), size)
                if "Range" in self.headers and first >= size:
                    self._answer(416, b"<Error><Code>InvalidRange</Code></Error>")
                    return
                self.send_response(206 if "Range" in self.headers else 200)
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
                self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                self.send_header("Content-Length", str(last - first + 1))
                self.end_headers()
                if with_body and last >= first:
                    self.connection.sendfile(file, first, last - first + 1)

        def _listed(self, prefix: str) -> None:
            names = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
            entries = [
                f"<Contents><Key>{escape(name)}</Key><Size>{(root / name).stat().st_size}</Size>"
                f"<LastModified>{_WHEN}</LastModified></Contents>"
                for name in names
                if name.startswith(prefix)
            ]
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
            self._answer(200, text.encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    return Handler


def _range(asked: str, size: int) -> tuple[int, int]:
    first, _, last = asked.removeprefix("bytes=").partition("-")
    return int(first or 0), min(size - 1, int(last or size - 1))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        return  # a client that went away


@contextmanager
def folder_bucket(root: Path) -> Iterator[int]:
    """Serve a folder on the loopback, in threads of this process; yield the port."""
    server = _Server(("127.0.0.1", 0), _handler(root))
    thread = threading.Thread(target=server.serve_forever, name="folder-bucket", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    with folder_bucket(Path(sys.argv[1])) as port:
        print(port, flush=True)
        sys.stdin.read()
