"""A running job that is asked for again is read from where it was read to, and its account is that of the whole log."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ett import log_columns
from ett.accounting import account
from ett.collector.counter_book import CounterBook
from ett.collector.site_labels import LabelGate, SiteLabels
from ett.event_line import encode_line
from ett.report import build_report
from ett.site import Site
from ett.store import Store, job_store
from ett.store.block import BLOCK_BYTES
from ett.store.job_follower import JobFollowers

NS = 10**9
START_NS = 19 * 10**17
pytestmark = pytest.mark.skipif(log_columns.NATIVE is None, reason="the extension is not built")


def line(src: str, seq: int, at_s: float, ev: str, att: int = 1, **fields: Any) -> bytes:
    at_ns = int(at_s * NS)
    common = {"v": 1, "job": "j", "gen": 0, "src": src, "host": "h", "boot": "b", "pid": 1 if src == "sup" else 2}
    return encode_line(
        common | {"att": att, "seq": seq, "wall_ns": START_NS + at_ns, "mono_ns": at_ns, "ev": ev} | fields
    )


def step(number: int) -> bytes:
    begin_ns, end_ns = (2 + number) * NS, (3 + number) * NS - 1000
    ends = {"b_mono": begin_ns, "e_mono": end_ns, "step": number, "c0": number, "c1": number + 1}
    return line("r0", number, 3 + number, "step", **ends)


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes of blocks were unpacked since the last call."""
    sizes: list[int] = []
    real = job_store.unpack
    monkeypatch.setattr(job_store, "unpack", lambda data, raw: sizes.append(raw) or real(data, raw))

    def taken() -> int:
        found = sum(sizes)
        sizes.clear()
        return found

    return taken


def begin(store: Store) -> None:
    store.ingest("j", "0/sup-h-1-b.jsonl", [line("sup", 0, 0, "job_submitted", 0, team="t", model="m")])
    store.ingest("j", "0/sup-h-1-b.jsonl", [line("sup", 1, 1, "attempt_started", world=1)])


def check(store: Store, now_ns: int) -> None:
    expected = account(store.event_log("j"), as_of_ns=now_ns, cut_at_as_of=False)
    with store.live_account("j", now_ns) as found:
        assert found is not None
        assert expected is not None
        assert build_report(found) == build_report(expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_account_is_that_of_the_whole_log_whatever_arrives(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    begin(store)
    done, total = 0, 2500  # several blocks
    while done < total:
        size = rng.choice([1, 40, 700])
        batch = [step(number) for number in range(done, min(total, done + size))]
        store.ingest("j", "1/r0-h-2-b.jsonl", rng.sample(batch, len(batch)) + batch[:1])
        done += len(batch)
        check(store, START_NS + (done + 10) * NS)
    store.ingest("j", "1/r0-h-2-b.jsonl", [b"no record"])
    check(store, START_NS + (done + 11) * NS)


def test_the_second_account_reads_what_is_new(store: Store, read_bytes: Callable[[], int]) -> None:
    begin(store)
    store.ingest("j", "1/r0-h-2-b.jsonl", [step(number) for number in range(5000)])
    now_ns = START_NS + 5010 * NS
    with store.live_account("j", now_ns) as found:
        assert found is not None
    assert read_bytes() > 4 * BLOCK_BYTES
    new = [step(number) for number in range(5000, 5010)]
    store.ingest("j", "1/r0-h-2-b.jsonl", new)
    read_bytes()
    with store.live_account("j", now_ns + 10 * NS) as found:
        assert found is not None
        assert sum(len(timeline.steps) for timeline in found.timelines) == 5010
    # The open block of each file, which the store itself reads and writes again for each batch.
    assert read_bytes() < BLOCK_BYTES + sum(map(len, new)) + 2000


@pytest.mark.slow
def test_a_collector_counts_a_running_job_without_reading_it_again(
    store: Store, read_bytes: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class At:
        now_ns = START_NS + 5010 * NS

        def wall_ns(self) -> int:
            return self.now_ns

        def mono_ns(self) -> int:
            return self.now_ns

    clock = At()
    monkeypatch.setattr("ett.collector.counter_book.COST_FACTOR", 0.0)
    begin(store)
    store.ingest("j", "1/r0-h-2-b.jsonl", [step(number) for number in range(5000)])
    book = CounterBook(store, LabelGate(SiteLabels()), Site(), clock)
    book.refresh()
    assert read_bytes() > 4 * BLOCK_BYTES
    store.ingest("j", "1/r0-h-2-b.jsonl", [step(5000)])
    clock.now_ns += NS
    read_bytes()
    book.refresh()
    assert read_bytes() < BLOCK_BYTES + 4000
    fresh = CounterBook(store, LabelGate(SiteLabels()), Site(), clock)
    fresh.load()
    assert fresh.view().counters == book.view().counters


def test_a_job_that_ended_is_not_kept(store: Store) -> None:
    begin(store)
    check(store, START_NS + 5 * NS)
    assert len(store._followers.num_records()) == 1
    store.ingest("j", "0/sup-h-1-b.jsonl", [line("sup", 2, 6, "job_ended", 0, status="cancelled")])
    check(store, START_NS + 7 * NS)
    assert not store._followers.num_records()


def test_the_job_asked_for_longest_ago_is_dropped_where_there_are_too_many_records() -> None:
    followers = JobFollowers(most_records=5)
    for job_id in (1, 2, 3):
        with followers.follower(job_id) as found:
            found.take(0, "1/r0-h-2-b.jsonl", [(0, b"".join(map(step, range(2))))])
    assert list(followers.num_records()) == [2, 3]


def test_a_follower_that_failed_is_made_anew() -> None:
    followers = JobFollowers()
    with pytest.raises(ValueError, match="read"), followers.follower(1):
        raise ValueError("could not be read")
    assert not followers.num_records()
