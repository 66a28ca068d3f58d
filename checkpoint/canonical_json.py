"""JSON with one spelling per value, so that a hash of the text is a hash of the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import xxhash

from ett.errors import CorruptState

Json = Any  # what json.loads returns
HASH_FIELD = "manifest_xxh3_128"


def canonical_json(value: Any) -> bytes:
    """Return ASCII JSON: sorted keys, no spaces, shortest floats that read back equal; NaN and infinities refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def seal(fields: dict[str, Any]) -> bytes:
    """Return the canonical JSON of `fields` with the hash of itself in "manifest_xxh3_128"."""
    parts = {name: canonical_json({name: value})[1:-1] for name, value in fields.items()}
    parts[HASH_FIELD] = canonical_json({HASH_FIELD: xxhash.xxh3_128_hexdigest(_joined(parts))})[1:-1]
    return _joined(parts)


def _joined(parts: dict[str, bytes]) -> bytes:
    """Return the canonical JSON of an object. Args: parts: name -> `"name":value`."""
    return b"{" + b",".join(parts[name] for name in sorted(parts)) + b"}"


def unseal(data: bytes) -> dict[str, Any] | None:
    """Return the fields of a sealed document, or None when any byte is not as `seal` wrote it."""
    fields = unchecked_fields(data)
    try:
        return fields if fields is not None and seal(fields) == data else None
    except (ValueError, RecursionError):  # a number that is not finite, which json.loads takes
        return None


def unchecked_fields(data: bytes) -> dict[str, Any] | None:
    """Return the fields of a document whose seal nobody looks at, or None where it is no JSON object."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):  # the latter: a million brackets
        return None
    if not isinstance(fields, dict):
        return None
    fields.pop(HASH_FIELD, None)
    return fields


@contextmanager
def well_formed(name: str) -> Iterator[None]:
    """Raise CorruptState where the fields of a sealed document are read and are not those of its kind.

    Its checksum is right, so that whoever wrote it, wrote it so.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as err:
        raise CorruptState(
            f"{name} has its checksum, but not the fields of its kind: {type(err).__name__}: {err}",
            expected="a document as docs/checkpoint.md describes it",
            do="restore another commit, and tell whoever wrote this one",
        ) from err
