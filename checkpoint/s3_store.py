"""Checkpoints in a bucket: create-only puts, files sent whole from a local disk, ranged reads.

Nothing is streamed into an object: a crash would complete what it had reached. A file is finished locally, then sent,
in parts where it is large, and appears when the last request has been carried out.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from ett.checkpoint.file_hash import file_hash
from ett.checkpoint.s3_client import PastTheEnd, RetryPolicy, S3Client, Taken, Transient
from ett.checkpoint.store import Entry
from ett.errors import ConfigError, Unreachable
from ett.store_uri import CHECKPOINTS, shown_uri

PART_BYTES = 16 << 20  # of an upload and of a read; S3 takes at most 10,000 parts, so large files get larger ones
MAX_PARTS = 10_000
CONNECTIONS = 8  # parts under way at once, of all files that are sent: bounds memory
MOST_READS = 64  # parts that are read at once; whoever reads bounds its memory itself
HASH_FIELD = "xxh3-128"  # an object's metadata: the hash of its bytes, to recognise our own after a lost answer
_UPLOAD_ID = "?upload="


class S3Reader:
    """The store is asked for the size when that is first looked at; who knows it costs one request less."""

    def __init__(self, store: S3Store, name: str) -> None:
        self._store, self._name = store, name

    @cached_property
    def size(self) -> int:
        return self._store.size(self._name)

    def read_into(self, offset: int, target: memoryview) -> int:
        if "size" in self.__dict__:
            target = target[: max(0, self.size - offset)]
        return self._store.read_range(self._name, offset, target) if len(target) else 0


class S3Store:
    """`s3://bucket/prefix`. Keys, region and endpoint come from where botocore finds them ($AWS_ENDPOINT_URL, …)."""

    def __init__(
        self,
        uri: str,
        *,
        policy: RetryPolicy | None = None,
        options: dict[str, Any] | None = None,
        reads: int = MOST_READS,
        setting: str = CHECKPOINTS,
    ) -> None:
        """Args: options: of s3fs. reads: parts that are read at once. setting: that the uri is of, for messages."""
        bucket, _, prefix = uri.partition("://")[2].partition("/")
        if not bucket:
            raise ConfigError(f"{setting} is {shown_uri(uri)!r}", expected="s3://bucket/folder", code="F004")
        self.uri = uri
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.client = S3Client(bucket, policy or RetryPolicy(), options, setting=setting)
        self._limits = {"send": CONNECTIONS, "read": reads}
        self._slots: dict[str, asyncio.Semaphore] = {}

    def create(self, name: str, data: bytes) -> None:
        async def put() -> None:
            try:
                await self.client.send("put_object", Key=self._key(name), Body=data, IfNoneMatch="*", **_hash_of(data))
            except Taken:
                # It may be our own: the answer to an attempt of ours can be lost, and aiohttp sends a PUT again unseen.
                if await self._fetch_taken(name) != data:
                    raise

        self.client.refresh()
        self.client.run(lambda: self.client.attempt(put, f"create {self._place(name)}"))

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        """Write a local file, then send it: nothing reaches the bucket before the context has ended well."""
        with tempfile.NamedTemporaryFile(prefix="ett-segment-", buffering=1 << 20) as file:
            yield file  # type: ignore[misc]
            file.flush()
            self.put_file(name, Path(file.name), file_hash(Path(file.name)))

    def sync(self, names: list[str]) -> None:
        return  # an object that was acknowledged is durable

    def put_file(self, name: str, path: Path, digest: str) -> None:
        self.client.refresh()
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            hashes = {"Metadata": {HASH_FIELD: digest}}
            self.client.run(lambda: self._send_file(name, file.fileno(), size, hashes))

    def read(self, name: str) -> bytes:
        return self.client.run(lambda: self.client.attempt(lambda: self._fetch(name), f"read {self._place(name)}"))

    @contextmanager
    def open(self, name: str) -> Iterator[S3Reader]:
        yield S3Reader(self, name)

    def read_range(self, name: str, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`, in parts at once; return the bytes that there were."""
        starts = range(0, len(target), PART_BYTES)

        async def part(start: int) -> int:
            piece = target[start : start + PART_BYTES]
            first = offset + start

            async def fetch() -> int:
                where = f"bytes={first}-{first + len(piece) - 1}"
                try:
                    answer = await self.client.send("get_object", Key=self._key(name), Range=where)
                except PastTheEnd:
                    return 0
                size = int(answer["ContentRange"].rpartition("/")[2])
                length = min(len(piece), size - first)
                await self.client.body_into(answer, piece[:length])
                return length

            async with self._slot("read"):
                return await self.client.attempt(fetch, f"read {self._place(name)} at byte {first}")

        return sum(self.client.run(lambda: _gather([part(start) for start in starts])))

    def size(self, name: str) -> int:
        return int(self.client.run(lambda: self.client.request("head_object", Key=self._key(name)))["ContentLength"])

    def list(self, prefix: str) -> list[str]:
        return [entry.name for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> builtins.list[Entry]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        found = self.client.run(lambda: self._pages("list_objects_v2", "Contents", self._key(folder)))
        entries = [Entry(e["Key"].removeprefix(self._root), e["Size"], e["LastModified"].timestamp()) for e in found]
        return sorted(entries, key=lambda entry: entry.name)

    def unfinished(self) -> dict[str, str]:
        found = self.client.run(lambda: self._pages("list_multipart_uploads", "Uploads", self._root))
        names = [(str(entry["Key"]).removeprefix(self._root), entry["UploadId"]) for entry in found]
        return {f"{name}{_UPLOAD_ID}{upload}": name for name, upload in names}

    def delete(self, name: str) -> None:
        key, _, upload = name.partition(_UPLOAD_ID)
        if upload:
            self.client.run(lambda: self._abort(self._key(key), upload))
            return
        with suppress(FileNotFoundError):
            self.client.run(lambda: self.client.request("delete_object", Key=self._key(name)))

    async def _send_file(self, name: str, descriptor: int, size: int, hashes: dict[str, Any]) -> None:
        async def put() -> None:
            body = await asyncio.to_thread(os.pread, descriptor, size, 0)
            try:
                await self.client.send("put_object", Key=self._key(name), Body=body, IfNoneMatch="*", **hashes)
            except Taken as err:
                await self._check_taken(name, size, hashes, err)

        if size <= PART_BYTES:
            async with self._slot("send"):
                await self.client.attempt(put, f"create {self._place(name)}")
            return
        with suppress(FileNotFoundError):  # a large file that an earlier life has sent is not sent again
            await self.client.attempt(lambda: self._check_ours(name, size, hashes), self._place(name))
            return
        upload = await self.client.request("create_multipart_upload", Key=self._key(name), **hashes)
        whole = {"Key": self._key(name), "UploadId": upload["UploadId"]}
        is_closed = False
        try:
            parts = await self._send_parts(descriptor, size, whole)
            is_closed = await self._complete(name, size, hashes, {**whole, "MultipartUpload": {"Parts": parts}})
        finally:
            if not is_closed:
                with suppress(Unreachable):  # what cannot be aborted now is swept when the next epoch opens
                    await self._abort(whole["Key"], whole["UploadId"])

    async def _send_parts(self, descriptor: int, size: int, whole: dict[str, Any]) -> builtins.list[dict[str, Any]]:
        part_bytes = max(PART_BYTES, -(-size // MAX_PARTS))

        async def part(number: int) -> dict[str, Any]:
            async with self._slot("send"):
                start = (number - 1) * part_bytes
                body = await asyncio.to_thread(os.pread, descriptor, min(part_bytes, size - start), start)
                answer = await self.client.request("upload_part", PartNumber=number, Body=body, **whole)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        return await _gather([part(number) for number in range(1, -(-size // part_bytes) + 1)])

    async def _complete(self, name: str, size: int, hashes: dict[str, Any], arguments: dict[str, Any]) -> bool:
        """Make the object appear; return whether the store said so, False where it was found there."""

        async def complete() -> bool:
            try:
                await self.client.send("complete_multipart_upload", IfNoneMatch="*", **arguments)
            except (Taken, FileNotFoundError) as err:
                # NoSuchUpload: an attempt without an answer has completed it.
                await self._check_taken(name, size, hashes, err)
                return False
            return True

        return await self.client.attempt(complete, f"create {self._place(name)}")

    async def _check_taken(self, name: str, size: int, hashes: dict[str, Any], err: Exception) -> None:
        """Return if the object under a name that was refused is the one that was to be created; else raise."""
        try:
            await self._check_ours(name, size, hashes)
        except FileNotFoundError as missing:
            if isinstance(err, Taken) and err.is_race:
                raise Transient("409, and the name is free") from missing
            raise Unreachable(f"{self._place(name)}: the upload is gone ({err})", code="S003") from err

    async def _check_ours(self, name: str, size: int, hashes: dict[str, Any]) -> None:
        found = await self.client.send("head_object", Key=self._key(name))
        if (
            found["ContentLength"] != size
            or found.get("Metadata", {}).get(HASH_FIELD) != hashes["Metadata"][HASH_FIELD]
        ):
            raise FileExistsError(f"{self._place(name)} is taken by other bytes")

    async def _abort(self, key: str, upload: str) -> None:
        for _ in range(3):  # a part that was under way may arrive after an abort, and would be billed for ever
            with suppress(FileNotFoundError):
                await self.client.request("abort_multipart_upload", Key=key, UploadId=upload)
            try:
                left = await self.client.request("list_parts", Key=key, UploadId=upload)
            except FileNotFoundError:
                return
            if not left.get("Parts"):
                return

    async def _fetch_taken(self, name: str) -> bytes:
        try:
            return await self._fetch(name)
        except FileNotFoundError as err:
            raise Transient("the name was refused, and is free") from err

    async def _fetch(self, name: str) -> bytes:
        answer = await self.client.send("get_object", Key=self._key(name))
        return await self.client.body(answer, answer["ContentLength"])

    async def _pages(self, method: str, field: str, prefix: str) -> builtins.list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after: dict[str, Any] = {}
        while True:
            page = await self.client.request(method, Prefix=prefix, **after)
            found += page.get(field, [])
            if not page.get("IsTruncated"):
                return found
            if method == "list_objects_v2":
                after = {"ContinuationToken": page["NextContinuationToken"]}
            else:
                after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _slot(self, what: str) -> asyncio.Semaphore:
        if what not in self._slots:
            self._slots[what] = asyncio.Semaphore(self._limits[what])
        return self._slots[what]

    def _key(self, name: str) -> str:
        return self._root + name

    def _place(self, name: str) -> str:
        return f"s3://{self.client.bucket}/{self._key(name)}"


def _hash_of(data: bytes) -> dict[str, Any]:
    return {"Metadata": {HASH_FIELD: xxhash.xxh3_128_hexdigest(data)}}


async def _gather(actions: builtins.list[Any]) -> builtins.list[Any]:
    """Await all and return their results; an error is raised only when nothing is under way any more."""
    results = await asyncio.gather(*actions, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
