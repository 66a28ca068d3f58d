"""Keeps a store of packs below a size: the keys that were used longest ago go, whole."""

from __future__ import annotations

from collections.abc import Iterable

from ett.compile_cache.pack_store import PackStore, Stored


def drop_oldest(packs: PackStore, most_bytes: int, *, keep: str = "") -> list[Stored]:
    """Delete packs until the rest has at most `most_bytes`, and what was left unfinished; return the packs that went.

    Args: keep: a key that stays.
    """
    packs.sweep()
    gone = surplus(packs.stored(), most_bytes, keep=keep)
    for stored in gone:
        packs.delete(stored.name)
    return gone


def surplus(stored: Iterable[Stored], most_bytes: int, *, keep: str = "") -> list[Stored]:
    """Return the packs of the keys used longest ago, as many keys as the rest needs to have at most `most_bytes`."""
    packs_of = by_key(stored)
    left = sum(map(num_bytes, packs_of.values()))
    gone: list[Stored] = []
    for key in sorted(packs_of, key=lambda key: (last_used_unix_s(packs_of[key]), key)):
        if left <= most_bytes:
            break
        if key != keep:
            gone += packs_of[key]
            left -= num_bytes(packs_of[key])
    return gone


def by_key(stored: Iterable[Stored]) -> dict[str, list[Stored]]:
    packs_of: dict[str, list[Stored]] = {}
    for each in stored:
        packs_of.setdefault(key_of(each), []).append(each)
    return packs_of


def num_bytes(packs: Iterable[Stored]) -> int:
    return sum(each.num_bytes for each in packs)


def last_used_unix_s(packs: Iterable[Stored]) -> float:
    return max(each.used_unix_s for each in packs)


def key_of(stored: Stored) -> str:
    return stored.name.partition("/")[0]
