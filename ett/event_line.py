"""A record as one line of the event log: canonical JSON, TAB, crc32 of the JSON's bytes in 8 hex digits, LF.

`encode_line` takes any record and says what a line is. `LineEncoder` gives the same bytes faster for the flat records
of one writer, whose common fields never change: it keeps a format for each kind of record.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from json.encoder import encode_basestring_ascii
from typing import Any

try:
    NATIVE: Any = import_module("ett._ring")
except ImportError:  # not built: a source tree without a compiler
    NATIVE = None

MAX_LINE_BYTES = 4096
# Kinds of records of one writer that keep a format; a program that makes up kinds without end costs no memory.
MAX_FORMATS = 256

_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=True)


def encode_line(record: Mapping[str, Any]) -> bytes:
    """Return the record's line; text that would make it longer than 4,096 bytes is cut and marked `[cut: N chars]`.

    Values that JSON has no form for become text, and NaN or infinity null: a record is never refused.
    """
    body = _json(record)
    if len(body) > MAX_LINE_BYTES - 10:
        body = _json(_shortened(record))
    return b"%b\t%08x\n" % (body, zlib.crc32(body))


class LineEncoder:
    """Encodes the records of one writer: byte for byte what `encode_line` makes of them.

    Args:
        common: fields of every record; they win over a record's own, and `ev`, `seq`, `wall_ns`, `mono_ns` over all.
    """

    def __init__(self, common: Mapping[str, Any]) -> None:
        self._common = dict(common)
        self._formats: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}

    def encode(self, ev: str, fields: dict[str, Any], *, seq: int, wall_ns: int, mono_ns: int) -> bytes:
        """Return the line of one record; adds to `fields`."""
        kind = (ev, *fields)
        text, names = self._formats.get(kind) or self._new_format(kind)
        fields["mono_ns"], fields["seq"], fields["wall_ns"] = mono_ns, seq, wall_ns
        try:
            values = [value if type(value) is int else _FORMS[type(value)](value) for value in map(fields.get, names)]
            body = (text % tuple(values)).encode("ascii")
        except (KeyError, ValueError):  # nested, infinite, or of a type that JSON has no form for
            body = b""
        if not body or len(body) > MAX_LINE_BYTES - 10:
            return encode_line(fields | self._common | {"ev": ev, "seq": seq, "wall_ns": wall_ns, "mono_ns": mono_ns})
        return b"%b\t%08x\n" % (body, zlib.crc32(body))

    def number_format(self, ev: str, fields: Mapping[str, Any]) -> Any:
        """Return the native form of records like this one, of whole numbers alone; None where there can be none.

        Its `line` gives the bytes that `encode` does, its values in the order of `fields`.
        """
        places = {name: place for place, name in enumerate(fields)}
        is_own = self._common.keys().isdisjoint(places) and not {"ev", *_STAMPS} & places.keys()
        if NATIVE is None or not is_own or not all(type(value) in (int, bool) for value in fields.values()):
            return None
        texts, names = self._layout((ev, *fields))
        return NATIVE.Format(texts, [_STAMP_SLOTS.get(name, places.get(name)) for name in names])

    def _new_format(self, kind: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return a %-format of the JSON of records of that kind, and the fields that it takes in their order."""
        texts, names = self._layout(kind)
        made = "%s".join(text.replace("%", "%%") for text in texts), names
        if len(self._formats) < MAX_FORMATS:
            self._formats[kind] = made
        return made

    def _layout(self, kind: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
        """Return the constant text of records of that kind, in pieces, and the fields that go between these."""
        constant = self._common | {"ev": kind[0]}
        texts: list[str] = [""]
        names: list[str] = []
        for name in sorted({*kind[1:], *constant, *_STAMPS}):
            texts[-1] += f"{',' if texts[-1] or names else '{'}{encode_basestring_ascii(name)}:"
            if name in constant and name not in _STAMPS:
                texts[-1] += _json({"": constant[name]})[4:-1].decode()
            else:
                names.append(name)
                texts.append("")
        texts[-1] += "}"
        return texts, tuple(names)


def _finite(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(value)
    return float.__repr__(value)


_STAMPS = ("mono_ns", "seq", "wall_ns")
_STAMP_SLOTS = {"mono_ns": -1, "seq": -2, "wall_ns": -3}  # as _ring.cpp has them
_FORMS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    bool: {True: "true", False: "false"}.__getitem__,
    float: _finite,
    type(None): {None: "null"}.__getitem__,
}


def _json(record: Mapping[str, Any]) -> bytes:
    try:
        return _encoder.encode(record).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        return _encoder.encode(_plain(record)).encode("ascii")


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 8:
        return str(type(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with its longest values cut until it fits; fields that still do not fit are left out."""
    texts = {
        key: value if isinstance(value, str) else _json({"": value})[4:-1].decode() for key, value in record.items()
    }
    short = dict(record)
    for keep in (2048, 1024, 512, 256, 128):
        for key in [key for key, text in texts.items() if len(text) > keep]:
            short[key] = f"{texts[key][:keep]}[cut: {len(texts[key])} chars]"
        if len(_json(short)) <= MAX_LINE_BYTES - 10:
            return short
    fitting = {key: short[key] for key in _ALWAYS_KEPT if key in short}
    num_left_out = 0
    for key in sorted(set(short) - set(fitting), key=str):
        if len(_json(fitting | {key: short[key]})) <= MAX_LINE_BYTES - 50:
            fitting[key] = short[key]
        else:
            num_left_out += 1
    return fitting | {"cut": f"[cut: {num_left_out} fields]"}


_ALWAYS_KEPT = ("v", "gen", "src", "host", "boot", "pid", "job", "att", "rank", "ev", "seq", "wall_ns", "mono_ns")
