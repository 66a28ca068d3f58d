"""Small inputs in Criteo's format, written by hand or drawn from a seed; none come from the challenge."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.criteo import Batch
from ett.trainer.data.criteo_text import CATEGORIES


def line_of(
    row: int, *, label: bytes | None = None, counts: Sequence[bytes] = (), categories: Sequence[bytes] = ()
) -> bytes:
    """Return a well-formed line whose first count is `row`, so that a test can tell rows apart."""
    counts = [b"%d" % row, *(b"%d" % (row % (i + 2)) for i in range(1, 13))] if not counts else list(counts)
    categories = list(categories) or [b"%08x" % ((row * 2654435761 + i) % 2**32) for i in range(26)]
    return b"\t".join([label if label is not None else b"%d" % (row % 4 == 0), *counts, *categories])


def ids_of(batch: Batch) -> NDArray[np.int64]:
    """Return int64 [26, b]."""
    ids = np.stack([of_category for of_category in batch.features.values() if isinstance(of_category, np.ndarray)])
    assert list(batch.features) == list(CATEGORIES) and ids.dtype == np.int64
    return ids


def lines_of(rows: int, first: int = 0) -> bytes:
    return b"".join(line_of(row) + b"\n" for row in range(first, first + rows))


def random_line(draw: random.Random) -> bytes:
    """Return a line that is usually well-formed, with every kind of fault now and then."""
    fields = [draw.choice((b"0", b"1"))]
    fields += [draw.choice((b"", b"0", b"-1", b"17", b"%d" % draw.getrandbits(40))) for _ in range(13)]
    fields += [draw.choice((b"", b"%08x" % draw.getrandbits(32), b"%X" % draw.getrandbits(24))) for _ in range(26)]
    match draw.randrange(12):
        case 0:
            fields[draw.randrange(40)] = draw.choice(
                (b"x", b"-", b"--1", b"+1", b"1.5", b" 1", b"\x00", b"\xff", b"0x1f")
            )
        case 1:
            fields = fields[: draw.randrange(40)]
        case 2:
            fields += [b""] * draw.randrange(1, 4)
        case 3:
            fields[draw.randrange(1, 14)] = b"9" * draw.randrange(17, 21)
        case 4:
            fields[draw.randrange(14, 40)] = b"abcdef012"
        case 5:
            return bytes(draw.choices(b"01\t\r-afAFgG\xc1", k=draw.randrange(90)))
    return b"\t".join(fields) + draw.choice((b"", b"", b"\r", b"\r\r"))
