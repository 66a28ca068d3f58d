"""What a host's buffer has of a commit, given to the other hosts while they restore: by path and hash, read-only."""

from __future__ import annotations

import secrets
import shutil
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ett.checkpoint.segment import StoredFile
from ett.errors import ConfigError

_SILENCE_S = 30.0  # of a client within a request
_COPY_BYTES = 1 << 20


class PeerServer:
    """`url/<xxh3_128>/<path>` is a file of `offered`; whatever else is asked for is not there.

    The url begins with a random word that only the ranks of the job are told.
    """

    def __init__(self, root: Path, offered: Mapping[str, StoredFile], address: str) -> None:
        """Args: address: of this host, that others reach. Raises: ConfigError: it is not this host's."""
        word = secrets.token_hex(16)
        files = {f"/{word}/{stored.xxh3_128}/{path}": root / path for path, stored in offered.items()}
        try:
            self._server = _Server((address, 0), _handler(files))
        except OSError as err:
            raise ConfigError(
                f"checkpoint.peer_address is {address!r}: {err.strerror or err}",
                expected="an address of this host that the other hosts reach",
            ) from err
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_address[1]}/{word}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="ckpt-peer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: object, client_address: object) -> None:
        return  # a peer that went away, or a file that did: the peer reads the uploaded one


def _handler(files: Mapping[str, Path]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SILENCE_S

        def do_GET(self) -> None:
            path = files.get(self.path)  # the names are compared whole: no path is put together from a request
            if path is None:
                self.send_error(404)
                return
            with open(path, "rb", buffering=0) as file:
                self.send_response(200)
                self.send_header("Content-Length", str(path.stat().st_size))
                self.end_headers()
                shutil.copyfileobj(file, self.wfile, _COPY_BYTES)

        def log_message(self, *args: object) -> None:
            return

    return Handler
