"""What a restore reads of a file: every wanted block, no other, in few requests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.checkpoint.buffer_pool import PAGE_BYTES
from ett.checkpoint.read_plan import requests_for, wanted_runs
from ett.checkpoint.segment import INDEX_DTYPE

ROWS = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=30)


@pytest.mark.slow
@given(blocks=ROWS, longest=st.integers(1, 7))
def test_runs_have_the_blocks_with_a_wanted_row(blocks: list[list[bool]], longest: int) -> None:
    ends = np.cumsum([0, *map(len, blocks)]).astype(np.int64)
    runs = list(wanted_runs(np.array([row for block in blocks for row in block]), ends, longest))
    assert [at for begin, end in runs for at in range(begin, end)] == [n for n, b in enumerate(blocks) if any(b)]
    assert all(0 < end - begin <= longest for begin, end in runs)
    # Two runs touch only where the first is as long as it may be.
    assert all(after[0] > run[1] or run[1] - run[0] == longest for run, after in pairwise(runs))


GROUPS = st.lists(
    st.tuples(st.integers(0, 50), st.lists(st.integers(1, 40), min_size=1, max_size=4)), min_size=1, max_size=5
)


@given(groups=GROUPS, largest_gap=st.integers(0, 30))
def test_requests_cover_each_group_once(groups: list[tuple[int, list[int]]], largest_gap: int) -> None:
    at, spans, records = 4096, [], []
    for gap, lengths in groups:
        index = np.zeros(len(lengths), INDEX_DTYPE)
        index["length"] = lengths
        index["offset"] = at + gap + np.cumsum([0, *lengths[:-1]])
        spans.append((at + gap, at + gap + sum(lengths)))
        at = spans[-1][1]
        records.append(index)
    requests = requests_for(records, largest_gap)
    assert [group for request in requests for group in request.groups] == spans
    for request in requests:
        assert (request.offset, request.offset + request.length) == (request.groups[0][0], request.groups[-1][1])
        assert request.room_bytes >= request.length and request.room_bytes % PAGE_BYTES == 0
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    assert len(requests) == 1 + sum(gap > largest_gap for gap in gaps)
