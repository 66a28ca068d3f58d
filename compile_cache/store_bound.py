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
    by_key: dict[str, list[Stored]] = {}
    for each in stored:
        by_key.setdefault(key_of(each), []).append(each)
    left = sum(each.num_bytes for packs in by_key.values() for each in packs)
    gone: list[Stored] = []
    for key in sorted(by_key, key=lambda key: (max(each.used_unix_s for each in by_key[key]), key)):
        if left <= most_bytes:
            break
        if key != keep:
            gone += by_key[key]
            left -= sum(each.num_bytes for each in by_key[key])
    return gone


def key_of(stored: Stored) -> str:
    return stored.name.partition("/")[0]
