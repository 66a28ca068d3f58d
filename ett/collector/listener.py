"""Runs the application under uvicorn: one socket, one ready line, and an orderly end on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from ett.errors import AccessDenied, Conflict, NotFound, UsageError

MAX_CONNECTIONS = 512
DRAIN_S = 10  # for requests in progress after the signal


def host_and_port(address: str) -> tuple[str, int]:
    """Return what "host:port" or "[::1]:port" says. Raises: UsageError: it has no such form."""
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65536
    if not colon or not host.strip("[]") or not is_port:
        raise UsageError(f"--bind {address!r}", expected="HOST:PORT, such as 127.0.0.1:9480 or [::1]:9480")
    return host.strip("[]"), int(port)


def bind(address: str) -> socket.socket:
    """Return a listening socket on "host:port"; port 0 takes a free one.

    Raises: UsageError: no such form. Conflict: the port is taken. NotFound: no such host. AccessDenied.
    """
    host, port = host_and_port(address)
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except socket.gaierror as err:
        raise NotFound(f"--bind {address}: there is no host {host!r}") from err
    except PermissionError as err:
        raise AccessDenied(f"--bind {address}: this user may not listen there") from err
    except OSError as err:
        raise Conflict(
            f"--bind {address} cannot be had: {err.strerror}", do="choose another port; 0 takes a free one"
        ) from err


def serve(app: ASGIApp, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are answered first."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=DRAIN_S,
        lifespan="on",
    )
    # uvicorn raises the signal that ended it again, for the handlers that were there before: these must not kill us.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    asyncio.run(_serve(_AnnouncedServer(config, on_ready), listening))


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    await server.serve(sockets=[listening])


class _AnnouncedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()
