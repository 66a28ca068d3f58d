"""What befalls files that lie on a disk: flipped bits, holes of zeros, ends cut off or grown, wrong places."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random, list[Path]], None]


def flip(path: Path, chance: random.Random, others: list[Path]) -> None:
    """A bit, of any byte or of one that is not zero: small files are mostly the zeros between their sections."""
    data = bytearray(path.read_bytes())
    at = chance.choice([range(len(data)), _filled(data)])
    data[chance.choice(at)] ^= 1 << chance.randrange(8)
    _replace(path, data)


def zeros(path: Path, chance: random.Random, others: list[Path]) -> None:
    """A hole where there was something: a page that a loss of power kept from the disk, or a part of one."""
    data = bytearray(path.read_bytes())
    start = chance.choice(_filled(data))
    length = min(len(data) - start, chance.choice([1, 8, 16, 512, 4096]))
    data[start : start + length] = bytes(length)
    _replace(path, data)


def truncate(path: Path, chance: random.Random, others: list[Path]) -> None:
    data = path.read_bytes()
    _replace(path, data[: chance.randrange(len(data))])


def append(path: Path, chance: random.Random, others: list[Path]) -> None:
    _replace(path, path.read_bytes() + chance.randbytes(chance.choice([1, 24, 52, 4096])))


def lose(path: Path, chance: random.Random, others: list[Path]) -> None:
    path.unlink()


def swap(path: Path, chance: random.Random, others: list[Path]) -> None:
    other = _another(path, chance, others)
    mine, theirs = path.read_bytes(), other.read_bytes()
    _replace(path, theirs)
    _replace(other, mine)


def replace(path: Path, chance: random.Random, others: list[Path]) -> None:
    """Another file's bytes stand under the name."""
    _replace(path, _another(path, chance, others).read_bytes())


def rename(path: Path, chance: random.Random, others: list[Path]) -> None:
    """The file stands under another's name, and nothing under its own."""
    os.replace(path, _another(path, chance, others))


DAMAGES: dict[str, Damage] = {
    damage.__name__: damage for damage in (flip, zeros, truncate, append, lose, swap, replace, rename)
}


def _filled(data: bytearray) -> list[int]:
    return [at for at, byte in enumerate(data) if byte]


def _another(path: Path, chance: random.Random, others: list[Path]) -> Path:
    """Return a file with other bytes; mostly one of the same kind, which is easier to take for it."""
    mine = path.read_bytes()
    different = [other for other in others if other != path and other.read_bytes() != mine]
    alike = [other for other in different if other.name == path.name or other.parent == path.parent]
    return chance.choice(alike if alike and chance.random() < 0.7 else different)


def _replace(path: Path, data: bytes | bytearray) -> None:
    """Give a name other bytes without touching the file that other names may have."""
    temporary = path.with_name(f"new-{path.name}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
