"""User histories with a planted signal: seeded, of very uneven length, Zipf ids.

Row n is a pure function of (seed, n), a user's history one of (seed, user). Lengths are log-normal: half of the users
have fewer than 150 ids, one in a thousand is clipped at 21,000. Items follow a bounded Zipf law, over a million if
nothing else is said; each has a taste and an appeal. A row's log-odds are the item's appeal, and its taste times that
of the user's history: only a model that looks at both can see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ett.trainer.data.generator import draw_normal, draw_uniform, zipf_ranks
from ett.trainer.data.order import mix64, salted

if TYPE_CHECKING:
    import pyarrow as pa

LABEL, USER, ITEM, HISTORY = "label", "user_id", "item_id", "history"
NUM_USERS, NUM_ITEMS = 1_000_000, 1_000_000
_LOG_LENGTH_MEAN, _LOG_LENGTH_SD = 5.0, 1.6
_BIAS, _APPEAL_SD, _TASTE_WEIGHT = -1.2, 0.5, 1.5
_GROUP_ROWS = 4096  # of a row group: 17 MB of ids
# Salts of the independent draws; those of the other generator are below 10.
_USER, _ITEM, _USER_ID, _ITEM_ID, _LABEL, _HISTORY, _LENGTH_U, _LENGTH_V = range(101, 109)
_TASTE_U, _TASTE_V, _APPEAL_U, _APPEAL_V = range(109, 113)


def sequence_tables(rows: int, seed: int, *, max_length: int, items: int = NUM_ITEMS) -> Iterator[pa.Table]:
    """Yield tables of up to 4096 rows: label int8, user_id and item_id int64, history list<int64>."""
    import pyarrow as pa

    for first in range(0, rows, _GROUP_ROWS):
        numbers = np.arange(first, min(first + _GROUP_ROWS, rows), dtype=np.uint64)
        user = (draw_uniform(numbers, seed, _USER, 0) * NUM_USERS).astype(np.uint64)
        item = _items(numbers, seed, _ITEM, items)
        lengths = history_lengths(user, seed, max_length)
        history = _items(_history_keys(user, lengths), seed, _HISTORY, items)
        label = draw_uniform(numbers, seed, _LABEL, 0) < _click_rate(item, history, lengths, seed)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
        yield pa.table(
            {
                LABEL: pa.array(label.astype(np.int8)),
                USER: pa.array(_ids(user, seed, _USER_ID)),
                ITEM: pa.array(_ids(item, seed, _ITEM_ID)),
                HISTORY: pa.ListArray.from_arrays(pa.array(offsets), pa.array(_ids(history, seed, _ITEM_ID))),
            }
        )


def history_lengths(user: NDArray[np.uint64], seed: int, max_length: int) -> NDArray[np.int64]:
    """Return the number of ids in each user's history, at least 1."""
    normal = draw_normal(user, seed, _LENGTH_U, _LENGTH_V, 0)
    lengths = np.ceil(np.exp(_LOG_LENGTH_MEAN + _LOG_LENGTH_SD * normal))
    return np.minimum(lengths, max_length).astype(np.int64)


def _history_keys(user: NDArray[np.uint64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number for each place in each history: its user and how manieth it is."""
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return (np.repeat(user, lengths) << np.uint64(32)) | place.astype(np.uint64)


def _items(keys: NDArray[np.uint64], seed: int, salt: int, num_items: int = NUM_ITEMS) -> NDArray[np.uint64]:
    """Return an item for each key, by popularity from 0."""
    return zipf_ranks(draw_uniform(keys, seed, salt, 0), num_items).astype(np.uint64)


def _click_rate(
    item: NDArray[np.uint64], history: NDArray[np.uint64], lengths: NDArray[np.int64], seed: int
) -> NDArray[np.float64]:
    taste_of_history = np.add.reduceat(_taste(history, seed), np.cumsum(lengths) - lengths) / np.sqrt(lengths)
    appeal = _APPEAL_SD * draw_normal(item, seed, _APPEAL_U, _APPEAL_V, 0)
    log_odds = _BIAS + appeal + _TASTE_WEIGHT * _taste(item, seed) * np.tanh(taste_of_history)
    rate: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-log_odds))
    return rate


def _taste(item: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    return draw_normal(item, seed, _TASTE_U, _TASTE_V, 0)


def _ids(number: NDArray[np.uint64], seed: int, salt: int) -> NDArray[np.int64]:
    """Return an id of 63 bits for each number."""
    return (mix64(number ^ salted(seed, salt)) >> np.uint64(1)).astype(np.int64)
