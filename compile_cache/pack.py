"""A pack: files of torch's cache folders in one signed object.

Layout: MAGIC, HMAC-SHA256 over all that follows it, length of the manifest (uint64, little-endian), the manifest as
canonical JSON, the files' bytes back to back in the manifest's order, compressed with zstd. The manifest says what the
pack is for (its key and the parts of it) and of each file path, size and SHA-256.

The signature is checked before anything is parsed. What it protects is not only bytes: torch unpickles these files and
loads them as machine code, so to load a pack is to run the code of whoever signed it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zstandard

from ett.compile_cache.cache_paths import is_allowed
from ett.compile_cache.key import Json, canonical
from ett.errors import CorruptState

MAGIC = b"ETTPACK1"
_MAC_BYTES = hashlib.sha256().digest_size
_HEAD_BYTES = len(MAGIC) + _MAC_BYTES + 8
_LEVEL = 3  # of zstd: 1.1 MB of an MLP's folder become 0.2 MB in 10 ms
MOST_FILES = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    key: str
    parts: Json  # what the key was made of
    files: Mapping[str, bytes]  # by their path below the cache folder

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all files, unpacked."""
        return sum(map(len, self.files.values()))


def seal_pack(pack: Pack, secret: bytes) -> bytes:
    """Return a pack's bytes; the same for the same pack and secret."""
    names = sorted(pack.files)
    body = zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(pack.files[name] for name in names))
    entries = [[name, len(pack.files[name]), hashlib.sha256(pack.files[name]).hexdigest()] for name in names]
    manifest = canonical({"key": pack.key, "parts": pack.parts, "files": entries})
    signed = len(manifest).to_bytes(8, "little") + manifest + body
    return MAGIC + _mac(secret, signed) + signed


def open_pack(data: bytes, secret: bytes, *, key: str, most_bytes: int, where: str) -> Pack:
    """Return the pack of these bytes, every byte of it checked.

    Args:
        key: that it must be for.
        most_bytes: of all files together; a larger pack is refused before it is unpacked.
        where: for messages.
    Raises: CorruptState: cut, changed, unsigned or signed with another key (C011); made for another key, or with a
        path that no cache of torch's has, or too large (C012).
    """
    manifest, body = _verified(data, secret, where)
    if manifest["key"] != key:
        raise _foreign(where, f"is for the key {manifest['key']}", f"one for {key}")
    entries: list[list[Any]] = manifest["files"]
    wrong = next((name for name, _, _ in entries if not is_allowed(name)), None)
    if wrong is not None:
        raise _foreign(where, f"has a file {wrong[:200]!r}", "paths of torch's compile caches alone")
    total = sum(size for _, size, _ in entries)
    if len(entries) > MOST_FILES or total > most_bytes:
        raise _foreign(
            where,
            f"unpacks to {len(entries)} files of {total} bytes",
            f"at most {MOST_FILES} files, at most {most_bytes} bytes",
        )
    return Pack(key=manifest["key"], parts=manifest["parts"], files=_files(entries, total, body, where))


def _files(entries: list[list[Any]], total: int, body: bytes, where: str) -> dict[str, bytes]:
    try:
        # Not more than the manifest says, whatever the frame's own header claims.
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            plain = reader.read(total + 1)
    except zstandard.ZstdError as err:
        raise _damaged(where, f"cannot be decompressed: {err}") from err
    if len(plain) != total:
        raise _damaged(where, f"does not unpack to the {total} bytes that its manifest says")
    files, offset = {}, 0
    for name, size, digest in entries:
        files[name] = plain[offset : offset + size]
        offset += size
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise _damaged(where, f"has other bytes of {name} than its manifest says")
    return files


def _verified(data: bytes, secret: bytes, where: str) -> tuple[dict[str, Any], bytes]:
    if len(data) < _HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise _damaged(where, f"is no pack ({len(data)} bytes)")
    mac, signed = data[len(MAGIC) : len(MAGIC) + _MAC_BYTES], data[len(MAGIC) + _MAC_BYTES :]
    if not hmac.compare_digest(mac, _mac(secret, signed)):
        raise _damaged(where, "is changed, cut, or not signed with this key")
    length = int.from_bytes(signed[:8], "little")
    return json.loads(signed[8 : 8 + length]), signed[8 + length :]


def _mac(secret: bytes, signed: bytes) -> bytes:
    return hmac.digest(secret, signed, "sha256")


def _damaged(where: str, what: str) -> CorruptState:
    return CorruptState(
        f"{where} {what}",
        expected="bytes as they were signed, with the key that this host has",
        did="nothing of it was used; what it has is compiled again",
        do="`ett compile-cache verify` names all such packs, `ett compile-cache gc --damaged` removes them",
        code="C011",
    )


def _foreign(where: str, what: str, expected: str) -> CorruptState:
    return CorruptState(
        f"{where} {what}",
        expected=expected,
        did="nothing of it was used; what it has is compiled again",
        do="find out who wrote it: it is signed with the key of this cache",
        code="C012",
    )
