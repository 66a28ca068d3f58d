"""Who may talk to the collector: a token, and the names under which it may be addressed."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ett.errors import ConfigError, NotFound, UsageError

MAX_TOKEN_BYTES = 4096  # of the file: one that was named by mistake may have no end
MIN_TOKEN_CHARS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessPolicy:
    """`token_sha256`: None for a loopback server without a token. `hosts`: lower-case names allowed in Host."""

    token_sha256: bytes | None
    hosts: frozenset[str]

    def accepts_token(self, authorization: str) -> bool:
        """Return whether the header's value carries the token; the time it takes tells nothing about the token."""
        if self.token_sha256 is None:
            return True
        scheme, _, token = authorization.partition(" ")
        given = hashlib.sha256(token.strip().encode()).digest()
        return hmac.compare_digest(given, self.token_sha256) and scheme.lower() == "bearer"

    def accepts_host(self, header: str) -> bool:
        """Return whether Host names this server: a page that a browser was lured to can only use its own name."""
        return host_of(header) in self.hosts


def access_policy(bind_host: str, token: str | None, more_hosts: tuple[str, ...]) -> AccessPolicy:
    """Raises: UsageError: other machines could reach the server, and there is no token."""
    if token is None and not is_loopback(bind_host):
        raise UsageError(
            f"--bind {bind_host} is open to other machines, and there is no token",
            expected="a loopback address such as 127.0.0.1, or --token-file FILE ($ETT_TOKEN_FILE)",
            do="head -c 32 /dev/urandom | base64 > token; chmod 600 token",
        )
    own = {"localhost", "127.0.0.1", "::1", bind_host, socket.gethostname(), *more_hosts}
    digest = None if token is None else hashlib.sha256(token.encode()).digest()
    return AccessPolicy(token_sha256=digest, hosts=frozenset(host_of(name) for name in own))


def read_token(given: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the token of --token-file, else of $ETT_TOKEN_FILE, else $ETT_TOKEN; None where none is set.

    Raises: NotFound: there is no such file. ConfigError: it holds no token. Messages never show the token.
    """
    named = given or (Path(environ["ETT_TOKEN_FILE"]) if environ.get("ETT_TOKEN_FILE") else None)
    if named is None:
        token = environ.get("ETT_TOKEN", "").strip()
        where = "$ETT_TOKEN"
        if not token:
            return None
    else:
        where = str(named)
        try:
            with named.open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
        except OSError as err:
            raise NotFound(f"the token file {named} cannot be read: {os.strerror(err.errno or 0)}") from err
        except UnicodeDecodeError as err:
            raise ConfigError(f"the token file {named} is not ASCII text", expected="one token on one line") from err
    if len(token) < MIN_TOKEN_CHARS or len(token.split()) != 1:
        raise ConfigError(
            f"{where} holds no usable token",
            expected=f"at least {MIN_TOKEN_CHARS} characters on one line, without spaces",
            do="head -c 32 /dev/urandom | base64 > token; chmod 600 token",
        )
    return token


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """Return the lower-case name or address of a Host header's value, without port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() and ":" not in name else text
