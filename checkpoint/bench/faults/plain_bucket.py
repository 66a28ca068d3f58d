"""What a bucket holds, put and got over one connection, signed here: a tenth of the work of a session of s3fs."""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

from ett.checkpoint.bench.seaweed import KEYS
from ett.errors import Unreachable

_REGION, _UNSIGNED = "us-east-1", "UNSIGNED-PAYLOAD"
_SIGNED = "host;x-amz-content-sha256;x-amz-date"
MOST_KEYS = 1000  # that a server lists at once


class PlainBucket:
    """For one thread. Raises, everywhere: Unreachable: the server refuses."""

    def __init__(self, url: str, bucket: str) -> None:
        self._host, self._bucket = urlsplit(url).netloc, bucket
        self._connection = HTTPConnection(self._host, timeout=60)

    def fill(self, prefix: str, folder: Path) -> None:
        """Put the files of a folder below a prefix."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self._ask("PUT", f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def copy(self, prefix: str, folder: Path) -> Path:
        """Get all objects below a prefix into a new folder."""
        answer = self._ask("GET", "", query=f"list-type=2&max-keys={MOST_KEYS}&prefix={quote(prefix + '/', safe='')}")
        text = answer.decode()
        assert "<IsTruncated>true" not in text, f"more than {MOST_KEYS} objects below {prefix}"
        folder.mkdir()
        for key in re.findall(r"<Key>(.*?)</Key>", text):
            path = folder / html.unescape(key).removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._ask("GET", html.unescape(key)))
        return folder

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, key: str, body: bytes | None = None, query: str = "") -> bytes:
        path = f"/{self._bucket}/{quote(key)}" if key else f"/{self._bucket}"
        headers = self._headers(method, path, query)
        self._connection.request(method, f"{path}?{query}" if query else path, body, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise Unreachable(f"{method} of {path} was answered with {answer.status}: {data[:200]!r}")
        return data

    def _headers(self, method: str, path: str, query: str) -> dict[str, str]:
        """Return what signs a request, by version 4 of AWS's signatures; `query` is sorted."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{now[:8]}/{_REGION}/s3/aws4_request"
        signed = f"host:{self._host}\nx-amz-content-sha256:{_UNSIGNED}\nx-amz-date:{now}\n"
        asked = "\n".join([method, path, query, signed, _SIGNED, _UNSIGNED])
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(asked.encode()).hexdigest()])
        key = f"AWS4{KEYS['secret']}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        who = f"Credential={KEYS['key']}/{scope}, SignedHeaders={_SIGNED}, Signature={signature}"
        return {"x-amz-date": now, "x-amz-content-sha256": _UNSIGNED, "Authorization": f"AWS4-HMAC-SHA256 {who}"}
