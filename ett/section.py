"""Build a config dataclass from plain values: names, types and nesting are checked, the nearest name is suggested."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from ett.errors import ConfigError

T = TypeVar("T")


def build_section(cls: type[T], plain: Mapping[str, Any], where: str = "") -> T:
    """Build a config dataclass from plain JSON values, nested dataclasses and tuples included.

    Raises: ConfigError: an unknown key (names the nearest), a wrong type, or what the dataclass itself refuses.
    """
    assert is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    for key in plain:
        if key not in known:
            raise ConfigError(f"unknown key {_join(where, key)!r}", expected=nearest(key, known), code="F002")
    missing = [name for name, field in known.items() if name not in plain and _is_required(field)]
    if missing:
        raise ConfigError(f"{_join(where, missing[0])} is missing", expected="a value: it has no default")
    built = {key: _convert(hints[key], value, _join(where, key)) for key, value in plain.items()}
    return typing.cast(T, cls(**built))


def _convert(hint: Any, value: Any, name: str) -> Any:
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong_type(name, value, f"a table [{name}]")
        return build_section(typing.cast(type, hint), value, name)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value not in args:
            raise _wrong_type(name, value, "one of " + ", ".join(repr(arg) for arg in args))
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong_type(name, value, "a list")
        return tuple(_convert(args[0], item, f"{name}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong_type(name, value, "a table")
        return {key: _convert(args[1], item, f"{name}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(hint, type) or not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _wrong_type(name, value, _TYPE_NAMES.get(hint, getattr(hint, "__name__", str(hint))))
    return value


_TYPE_NAMES = {int: "an integer", float: "a number", str: "a string in quotes", bool: "true or false"}


def _convert_union(args: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and type(None) in args:
        return None
    options = [arg for arg in args if arg is not type(None)]
    for option in options:
        try:
            return _convert(option, value, name)
        except ConfigError as err:
            if option is options[-1]:
                raise err
    raise AssertionError("a union has at least one option")


def _wrong_type(name: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{name} is {json.dumps(value, default=str)}", expected=expected, code="F003")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown name: the closest known one, then all of them."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + "known: " + ", ".join(known)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
