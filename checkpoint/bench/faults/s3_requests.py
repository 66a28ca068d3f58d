"""A request to a bucket as a point of the protocol, and a client whose process can die before or after any request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from ett.checkpoint.bench.faults.fault_proxy import Request
from ett.checkpoint.bench.faults.faulty_store import Killed, role_of
from ett.checkpoint.s3_client import S3Client

T = TypeVar("T")
Death = Literal["killed before", "killed after"]
_VERBS = {
    "put_object": "put",
    "get_object": "get",
    "head_object": "head",
    "list_objects_v2": "list",
    "list_multipart_uploads": "uploads",
    "delete_object": "delete",
}


class Steps:
    """Which step of the protocol a request belongs to, by those before it: "0" of a start stays, "1" is a save's."""

    def __init__(self, root: str, first: str) -> None:
        self._root, self._step = root, first

    def point(self, verb: str, key: str) -> str:
        """Return the point of a request. Args: key: of the object, or the prefix of a list, in the bucket."""
        role = role_of(key.removeprefix(self._root))
        if verb == "put" and self._step != "0":
            self._step = {"segment": "2", "dense": "2", "fragment": "4"}.get(role, self._step)
        elif self._step == "4":
            self._step = "5"
        point = f"{self._step} {role} {verb}"
        if point == "5 record put":
            self._step = "6"
        return point

    def of_http(self, request: Request) -> str:
        parts = urlsplit(request.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if "prefix" in query:
            return self.point("uploads" if "uploads" in query else "list", query["prefix"][0])
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        return self.point({"DELETE": "delete"}.get(request.method, request.method.lower()), key)


class MortalClient(S3Client):
    """A session of another client; `strikes` says at which request its process dies."""

    def __init__(self, of: S3Client, strikes: Callable[[str, str], Death | None]) -> None:
        super().__init__(of.bucket, of.policy, of._options)
        self._system, self._owner, self._since = of._system, of._owner, of._since
        self._strikes = strikes
        self.is_dead = False

    def run(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.is_dead:
            raise Killed
        try:
            return super().run(action)
        except _Dead:
            raise Killed from None

    async def send(self, method: str, **arguments: Any) -> Any:
        when = self._strikes(_VERBS.get(method, method), arguments.get("Key", arguments.get("Prefix", "")))
        if self.is_dead or when == "killed before":
            self.is_dead = True
            raise _Dead
        answer = await super().send(method, **arguments)
        if when == "killed after":
            self.is_dead = True
            raise _Dead
        return answer


class _Dead(Exception):
    """What ends a request of a process that has died; its caller sees Killed."""
