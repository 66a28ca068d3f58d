"""S3 requests: s3fs's session and loop, our own retries, and answers as typed errors.

A conditional request whose answer was lost is refused with 412 against its own object when it is sent again. s3fs and
botocore are told to try once, so that retries are bounded in one place; aiohttp still repeats a PUT whose connection
broke, unseen, so whoever is refused must look whether what lies there is its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from ett.checkpoint.random_wait import random_wait
from ett.errors import AccessDenied, ConfigError, Unreachable
from ett.store_uri import CHECKPOINTS

log = logging.getLogger(__name__)
T = TypeVar("T")

# A session reads keys from files and the environment once; one that is older is replaced before the next file.
SESSION_S = 300.0
PIECE_BYTES = 1 << 20  # of an answer, at most; as a rule there is less of it
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestExpired", "TokenRefreshRequired"}
_MISSING = {"NoSuchKey", "NoSuchUpload", "404"}
_TRANSIENT = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "BadDigest", "IncompleteBody"}
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """attempts: of one request; waits are random below a bound that doubles from `first_wait_s` to `longest_wait_s`."""

    attempts: int = 6
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0
    connect_s: float = 10.0
    answer_s: float = 60.0  # longest silence of a server within one request


class Transient(Exception):
    """A request that may be sent again; whether it was carried out is not known."""


class PastTheEnd(Exception):
    """A range that begins where the object has ended."""


class Taken(FileExistsError):
    """The name is taken. is_race: by a request at the same time, which may yet fail (409)."""

    def __init__(self, text: str, *, is_race: bool) -> None:
        super().__init__(text)
        self.is_race = is_race


class S3Client:
    """Requests to one bucket, from any thread of the process that it was made in, or of one that was spawned."""

    def __init__(
        self, bucket: str, policy: RetryPolicy, options: dict[str, Any] | None = None, *, setting: str = CHECKPOINTS
    ) -> None:
        """Args: setting: that names the bucket, for messages."""
        self.bucket, self._setting = bucket, setting
        self.policy = policy
        self._options = options or {}
        self._lock = threading.Lock()
        self._system: Any = None
        self._owner, self._since = 0, 0.0

    def run(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of requests on s3fs's thread and return what it returns."""
        from fsspec.asyn import sync

        result: T = sync(self._filesystem().loop, action)
        return result

    async def attempt(self, send: Callable[[], Awaitable[T]], what: str) -> T:
        """Await `send()` until it raises no Transient any more. Raises: Unreachable: the attempts are used up."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

        policy = self.policy
        retrying = AsyncRetrying(
            stop=stop_after_attempt(policy.attempts),
            wait=random_wait(policy.first_wait_s, policy.longest_wait_s),
            retry=retry_if_exception_type(Transient),
            reraise=True,
        )

        async def once() -> T:  # tenacity awaits coroutine functions only
            return await send()

        try:
            return await retrying(once)
        except Transient as err:
            raise Unreachable(
                f"{what}: no good answer in {policy.attempts} attempts, the last: {err}",
                do="check that the store runs and that this host reaches it",
            ) from err

    async def request(self, method: str, **arguments: Any) -> Any:
        """Send one request, again while that may help; for requests that may be carried out twice."""
        place = f"{method} s3://{self.bucket}/{arguments.get('Key', arguments.get('Prefix', ''))}"
        return await self.attempt(lambda: self.send(method, **arguments), place)

    async def send(self, method: str, **arguments: Any) -> Any:
        """Send one request once.

        Raises: Transient. Taken: a condition does not hold. PastTheEnd. FileNotFoundError. AccessDenied. Unreachable:
            refused for good. ConfigError: there is no such bucket.
        """
        import aiohttp
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        system = self._filesystem()
        try:
            return await system._call_s3(method, Bucket=self.bucket, **arguments)
        except (OSError, aiohttp.ClientError, BotoCoreError, ClientError) as err:
            raise self._translated(err, f"s3://{self.bucket}/{arguments.get('Key', '')}", system) from err

    async def body(self, answer: Any, length: int) -> bytes:
        """Return the body of a get_object. Raises: Transient: it was cut or the connection broke."""
        import aiohttp
        from botocore.exceptions import BotoCoreError

        try:
            data: bytes = await answer["Body"].read()
        except (OSError, aiohttp.ClientError, BotoCoreError) as err:
            raise Transient(f"the answer broke off: {type(err).__name__}") from err
        finally:
            answer["Body"].close()
        if len(data) != length:
            raise Transient(f"the answer is {len(data)} bytes, not {length}")
        return data

    async def body_into(self, answer: Any, target: memoryview) -> None:
        """Put the body of a get_object where it belongs, as it comes: it is never whole in other memory.

        Raises: Transient: it was cut, or longer, or the connection broke.
        """
        import aiohttp
        from botocore.exceptions import BotoCoreError

        done = 0
        try:
            while piece := await answer["Body"].read(PIECE_BYTES):
                if done + len(piece) > len(target):
                    raise Transient(f"the answer is longer than {len(target)} bytes")
                target[done : done + len(piece)] = piece
                done += len(piece)
        except (OSError, aiohttp.ClientError, BotoCoreError) as err:
            raise Transient(f"the answer broke off: {type(err).__name__}") from err
        finally:
            answer["Body"].close()
        if done != len(target):
            raise Transient(f"the answer is {done} bytes, not {len(target)}")

    def refresh(self) -> None:
        """Have the credentials read anew if the session is old; called before each file."""
        if time.monotonic() - self._since > SESSION_S:
            self._system = None

    def _translated(self, err: Exception, place: str, system: Any) -> Exception:
        status, code, text = _answer(err)
        if isinstance(err, FileExistsError) or code == "PreconditionFailed" or status == 412:
            return Taken(f"{place}: {text}", is_race=False)
        if status == 409:
            return Taken(f"{place}: {text}", is_race=True)
        if status == 416 or code == "InvalidRange":
            return PastTheEnd(f"{place}: {text}")
        if code == "NoSuchBucket":
            return ConfigError(
                f"there is no bucket {self.bucket}", do=f"create it, or correct {self._setting}", code="F004"
            )
        if code in _EXPIRED:
            if self._system is system:
                self._system = None  # the next attempt reads the credentials anew
            return Transient(f"the credentials have expired ({code})")
        if code in _MISSING or status == 404:
            return FileNotFoundError(f"{place}: {text}")
        if type(err).__name__ in _NO_CREDENTIALS:
            return AccessDenied(
                f"no credentials for {place}: {text.partition(': ')[2]}",
                expected="keys where botocore looks: $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, $AWS_PROFILE, "
                "~/.aws/credentials, the instance's role",
                do="set them where this process starts; `ett launch` hands its environment on to the ranks",
                code="P003",
            )
        if status in (401, 403):
            return AccessDenied(
                f"{place}: {text or code}",
                do="give these credentials the rights to list, read, write and delete there, or correct them",
                code="P003",
            )
        if status is None or status >= 500 or status == 429 or code in _TRANSIENT:
            return Transient(text or type(err).__name__)
        return Unreachable(f"{place}: the store answered {status} {code}: {text}", code="S003")

    def _filesystem(self) -> Any:
        with self._lock:
            # fsspec's loop is a thread, which a fork does not copy: a child using the parent's would wait for ever.
            if self._system is None or self._owner != os.getpid():
                self._system, self._owner, self._since = self._new_filesystem(), os.getpid(), time.monotonic()
            return self._system

    def _new_filesystem(self) -> Any:
        import s3fs

        system = s3fs.S3FileSystem(
            skip_instance_cache=True,
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": self.policy.connect_s,
                "read_timeout": self.policy.answer_s,
                "retries": {"total_max_attempts": 1, "mode": "standard"},
                "max_pool_connections": 64,
            },
            **self._options,
        )
        system.retries = 1
        return system


def _answer(err: BaseException) -> tuple[int | None, str, str]:
    """Return (HTTP status, the server's code, text) of the answer in an exception or its causes; None: no answer."""
    at: BaseException | None = err
    while at is not None:
        response = getattr(at, "response", None)
        if isinstance(response, dict) and "Error" in response:
            details = response["Error"]
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(details.get("Code", "")), str(details.get("Message", ""))
        at = at.__cause__
    return None, "", f"{type(err).__name__}: {err}"
