"""The commit protocol in a bucket: whatever requests and answers get lost, late or doubled, one writer, one history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks, holds, raise_first, run_ranks
from s3_servers import S3Server, s3_store

from ett.checkpoint.bench.faults.fault_proxy import Fault, FaultProxy, Request
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.incarnation import Epoch, open_epoch
from ett.checkpoint.s3_store import S3Store
from ett.clock import SystemClock
from ett.errors import Conflict, EttError, Unreachable

pytestmark = pytest.mark.slow
NOWHERE = Path("/nowhere")  # a Rank is given its store


@pytest.fixture
def store(proxy: FaultProxy) -> S3Store:
    return s3_store(proxy.url)


@pytest.fixture
def behind(moto: S3Server, store: S3Store) -> S3Store:
    """The same folder, seen without the proxy."""
    return s3_store(moto.url, store.uri.rpartition("/")[2])


def solo(store: S3Store) -> Rank:
    rank = Rank(NOWHERE, ThreadRanks(0, 1, Meeting(1)), store=store)
    rank.checkpointer.restore()
    return rank


def save(rank: Rank, seed: int) -> Commit:
    rank.fill(seed)
    return rank.checkpointer.save(seed, seed * 10)


def restored(store: S3Store, world_size: int = 1) -> list[tuple[Rank, object]]:
    def work(ranks: ThreadRanks) -> tuple[Rank, object]:
        rank = Rank(NOWHERE, ranks, store=store)
        return rank, rank.checkpointer.restore()

    results = run_ranks(world_size, work)
    raise_first(results)
    return results  # type: ignore[return-value]


def step_of(store: S3Store) -> int:
    known, damaged = CommitLog(store).read_all()
    assert not damaged
    return line_of_history(known)[0].step


def to_commit(fault: Fault) -> Callable[[Request], Fault | None]:
    """Return a plan that does `fault` to the first creation of a commit."""
    done: list[Request] = []

    def plan(request: Request) -> Fault | None:
        if request.is_put_of_commit and not done:
            done.append(request)
            return fault
        return None

    return plan


def test_a_job_saves_on_two_ranks_and_restores_on_three(store: S3Store) -> None:
    def work(ranks: ThreadRanks) -> None:
        rank = Rank(NOWHERE, ranks, store=store, keep_last=2)
        rank.checkpointer.restore()
        for seed in (1, 2, 3):
            save(rank, seed)

    raise_first(run_ranks(2, work))
    assert holds(restored(store, 3), 3)
    known, _ = CommitLog(store).read_all()
    live = {file.path for commit in known.values() for file in commit.stored_files()}
    assert {name for top in ("d", "m", "dense") for name in store.list(top)} == live
    assert {commit.step for commit in known.values()} == {2, 3}


@pytest.mark.parametrize(
    "fault", ["reset", "lost answer", "unavailable", "twice", "expired", "conflict", "conflict after acting"]
)
def test_a_commit_happens_once_whatever_its_answer_does(store: S3Store, proxy: FaultProxy, fault: Fault) -> None:
    rank = solo(store)
    proxy.plan = to_commit(fault)
    commit = save(rank, 1)
    assert CommitLog(store).read(commit.seq) == commit
    assert CommitLog(store).seqs() == [commit.seq]  # the empty start is retired
    assert save(rank, 2).seq == 3


def test_an_epoch_whose_opening_was_not_answered_is_opened_once(store: S3Store, proxy: FaultProxy) -> None:
    proxy.plan = to_commit("lost answer")
    opened = open_epoch(store, None, job="j", world_size=1, clock=SystemClock())
    assert opened == Epoch(epoch=1, seq=1)
    assert CommitLog(store).seqs() == [1]


def test_a_commit_that_arrives_late_finds_its_number_taken(store: S3Store, behind: S3Store, proxy: FaultProxy) -> None:
    """A zombie's creation lies in the network while a newer life opens its epoch under the same number."""
    zombie = solo(store)
    save(zombie, 1)
    proxy.plan = lambda request: "held" if request.is_put_of_commit else None
    with pytest.raises(Unreachable):
        save(zombie, 2)
    newer = solo(behind)
    answers = proxy.release()
    assert answers
    assert all(b"412" in answer for answer in answers)
    proxy.plan = lambda request: None
    with pytest.raises(Conflict) as raised:
        save(zombie, 3)
    assert raised.value.code == "L008"
    save(newer, 4)
    assert holds(restored(behind), 4)


@pytest.mark.parametrize("who", ["older", "newer"])
def test_of_two_lives_that_commit_at_once_one_goes_on(
    store: S3Store, behind: S3Store, proxy: FaultProxy, who: str
) -> None:
    """The newer life opens its epoch between the older one's last look and its commit, or just after it."""
    older = solo(store)
    save(older, 1)
    lives: list[Rank] = []

    def plan(request: Request) -> Fault | None:
        if request.is_put_of_commit and not lives:
            if who == "newer":
                lives.append(solo(behind))
            else:
                lives.append(older)
        return None

    proxy.plan = plan
    if who == "newer":
        with pytest.raises(Conflict):
            save(older, 2)
    else:
        save(older, 2)
        lives[0] = solo(behind)
        with pytest.raises(Conflict):
            save(older, 3)
    save(lives[0], 5)
    assert holds(restored(behind), 5)


def test_two_lives_opening_at_once_get_different_epochs(store: S3Store, behind: S3Store, proxy: FaultProxy) -> None:
    other: list[Epoch] = []

    def plan(request: Request) -> Fault | None:
        if request.is_put_of_commit and not other:
            other.append(open_epoch(behind, None, job="j", world_size=1, clock=SystemClock()))
        return None

    proxy.plan = plan
    ours = open_epoch(store, None, job="j", world_size=1, clock=SystemClock())
    assert (other[0], ours) == (Epoch(epoch=1, seq=1), Epoch(epoch=2, seq=2))


def test_a_failed_save_changes_nothing_visible(store: S3Store, behind: S3Store, proxy: FaultProxy) -> None:
    rank = solo(store)
    save(rank, 1)
    before = behind.list("")
    proxy.plan = lambda request: "unavailable" if request.method == "PUT" and "/dense/" in request.path else None
    with pytest.raises(Unreachable):
        save(rank, 2)
    assert behind.list("") == before
    assert behind.unfinished() == {}
    proxy.plan = lambda request: None
    save(rank, 3)
    assert holds(restored(behind), 3)


# What a death leaves whose last request was lost, the death at the request before leaves whose answer was lost.
@pytest.mark.parametrize("last", ["lost answer", pytest.param("reset", marks=pytest.mark.campaign)])
def test_death_at_any_request_of_a_save_loses_at_most_that_save(moto: S3Server, proxy: FaultProxy, last: Fault) -> None:
    """From one request on nothing reaches the server; that one does, or does not, and is never answered."""
    found = {1: 0, 2: 0}
    number = 0
    while True:
        number += 1
        proxy.forget()
        store = s3_store(proxy.url)
        behind = s3_store(moto.url, store.uri.rpartition("/")[2])
        patience = store.client.policy
        store.client.policy = replace(patience, attempts=1)
        rank = solo(store)
        save(rank, 1)
        first = len(proxy.seen)

        def plan(request: Request, fatal: int = first + number) -> Fault | None:
            if request.number < fatal:
                return None
            return last if request.number == fatal else "reset"

        proxy.plan = plan
        died = False
        try:
            save(rank, 2)
        except EttError:
            died = True
        store.client.policy = patience
        died = died or len(proxy.seen) >= first + number
        step = step_of(behind)
        assert holds(restored(behind), step), f"a mixture after request {number}"
        known, _ = CommitLog(behind).read_all()
        live = {file.path for commit in known.values() for file in commit.stored_files()}
        assert {name for top in ("d", "m", "dense") for name in behind.list(top)} == live, f"strays after {number}"
        found[step] += 1
        if not died:
            break
    assert min(found.values()) > 0
    assert number > 10
