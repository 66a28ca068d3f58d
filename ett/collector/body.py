"""A request's body under limits: as it arrives, and as it grows while it is unpacked."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

from ett.errors import DataError

MAX_SENT_BYTES = 1 << 20
MAX_UNPACKED_BYTES = 8 << 20
# Log lines shrink 5 to 30 times. Small bodies of one repeated record may do better; a bomb shrinks 1,000 times.
MAX_RATIO = 100
_RATIO_FREE_BYTES = 256 << 10


class BodyTooLarge(DataError):
    """413: the limits are the server's; the sender splits what it sent."""


async def read_limited(chunks: AsyncIterator[bytes], declared_bytes: int | None) -> bytes:
    """Return the whole body. Raises: BodyTooLarge: more than MAX_SENT_BYTES, said or sent."""
    if declared_bytes is not None and declared_bytes > MAX_SENT_BYTES:
        raise _too_large(declared_bytes, MAX_SENT_BYTES, "sent")
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_SENT_BYTES:
            raise _too_large(len(body), MAX_SENT_BYTES, "sent")
    return bytes(body)


def unpack(body: bytes, encoding: str) -> bytes:
    """Return the body without its content encoding; memory stays under the limit whatever it claims to hold.

    Raises:
        BodyTooLarge: it unpacks to more than MAX_UNPACKED_BYTES, or to more than MAX_RATIO times what was sent.
        DataError: it is not of that encoding, or ends early.
    """
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise DataError(f"content encoding {encoding[:40]!r}", expected="gzip or none")
    limit = min(MAX_UNPACKED_BYTES, max(_RATIO_FREE_BYTES, MAX_RATIO * len(body)))
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as err:
        raise DataError(f"the body is no gzip: {err}", expected="one gzip member") from err
    if len(unpacked) > limit:
        raise _too_large(len(unpacked), limit, "unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise DataError("the gzip body ends early, or something follows it", expected="one whole gzip member")
    return unpacked


def _too_large(found: int, limit: int, what: str) -> BodyTooLarge:
    return BodyTooLarge(f"at least {found} bytes {what}", expected=f"at most {limit}", do="send it in smaller parts")
