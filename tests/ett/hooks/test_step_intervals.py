from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.hooks.step_intervals import Interval, StepIntervals

S = 1_000_000_000
ADAM, SGD = 1, 2


class Loop:
    """A training loop on a clock of its own; each call takes `ms`."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.covered_ns = 0
        self.steps: list[Interval] = []
        self.begins: list[int] = []
        self.intervals = StepIntervals(self.steps.append, self.begins.append, lambda: self.covered_ns)

    def wait(self, ms: int) -> None:
        self.now_ns += ms * 1_000_000

    def fetch(self, samples: int | None = 8, ms: int = 1) -> None:
        self.intervals.fetching(self.now_ns)
        self.wait(ms)
        self.intervals.fetched(self.now_ns, samples)

    def step(self, optimizer: int = ADAM, ms: int = 10) -> None:
        begin_ns = self.now_ns
        self.wait(ms)
        self.intervals.stepped(begin_ns, self.now_ns, optimizer)

    def spend(self, ms: int) -> None:
        """A span: an evaluation or a save."""
        self.wait(ms)
        self.covered_ns += ms * 1_000_000

    @property
    def samples(self) -> Sequence[int | None]:
        return [step.samples for step in self.steps]


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_steps_follow_each_other_without_a_gap(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
        loop.step()
        loop.wait(5)  # logging
    first, second, third = loop.steps
    assert first == Interval(1_000_000, 11_000_000, 8)
    assert (second.begin_ns, third.begin_ns) == (first.end_ns, second.end_ns)


def test_micro_batches_add_up(loop: Loop) -> None:
    for _ in range(4):
        loop.fetch(8)
    loop.step()
    for samples in (8, 8, 8, 3):
        loop.fetch(samples)
    loop.step()
    assert loop.samples == [32, 27]


def test_a_long_pause_is_no_part_of_a_step(loop: Loop) -> None:
    loop.fetch()
    loop.step()
    loop.wait(5_000)
    fetched_ns = loop.now_ns
    loop.fetch()
    loop.step()
    assert loop.steps[1].begin_ns == fetched_ns == loop.begins[-1]


def test_a_pause_shorter_than_the_last_step_is(loop: Loop) -> None:
    loop.fetch()
    loop.step(ms=5_000)
    loop.wait(4_000)
    loop.fetch()
    loop.step()
    assert loop.steps[1].begin_ns == loop.steps[0].end_ns


def test_an_evaluation_between_two_steps_is_no_pause(loop: Loop) -> None:
    loop.fetch()
    loop.step()
    loop.spend(60_000)
    loop.fetch()
    loop.step()
    assert loop.steps[1].begin_ns == loop.steps[0].end_ns


def test_the_last_optimizer_on_a_batch_ends_the_step(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
        loop.step(ADAM)
        loop.step(SGD)
    # Of the first batch nobody knows yet that a second optimizer follows.
    assert [step.end_ns for step in loop.steps] == [11_000_000, 42_000_000, 63_000_000]
    assert loop.samples == [8, 8, 8]


def test_an_optimizer_that_steps_on_every_fifth_batch_makes_no_step_of_its_own(loop: Loop) -> None:
    for batch in range(1, 21):
        loop.fetch()
        loop.step(ADAM)
        if batch % 5 == 0:
            loop.step(SGD)
    loop.intervals.flush()
    assert loop.samples == [8] * 20


def test_two_optimizers_without_batches_make_one_step_a_round(loop: Loop) -> None:
    for _ in range(5):
        loop.step(ADAM)
        loop.step(SGD)
    assert len(loop.steps) == 5


def test_steps_on_one_batch_again_and_again_are_steps_of_unknown_size(loop: Loop) -> None:
    loop.fetch(8)
    for _ in range(3):
        loop.step()
    assert loop.samples == [8, None, None]


def test_a_batch_of_unknown_size_makes_the_step_unknown(loop: Loop) -> None:
    loop.fetch(8)
    loop.fetch(None)
    loop.step()
    assert loop.samples == [None]


def test_a_pass_for_statistics_is_forgotten(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
    loop.intervals.forget_batches()
    loop.wait(100)
    loop.fetch(8)
    begin_ns = loop.now_ns
    loop.step()
    assert loop.steps == [Interval(begin_ns, loop.now_ns, 8)]


def test_a_step_waiting_for_its_second_optimizer_is_not_lost_at_the_end(loop: Loop) -> None:
    for _ in range(2):
        loop.fetch()
        loop.step(ADAM)
        loop.step(SGD)
    loop.fetch()
    loop.step(ADAM)
    loop.intervals.flush()
    loop.intervals.flush()
    assert loop.samples == [8, 8, 8]


events = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 100)),
        st.tuples(st.just("step"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(0, 3000)),
        st.tuples(st.just("spend"), st.integers(0, 3000)),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(events)
def test_steps_are_in_order_disjoint_and_no_sample_counts_twice(happened: list[tuple[str, int]]) -> None:
    loop = Loop()
    fetched = 0
    for what, value in happened:
        getattr(loop, what)(value)
        fetched += value if what == "fetch" else 0
    loop.intervals.flush()
    edges = [edge for step in loop.steps for edge in (step.begin_ns, step.end_ns)]
    assert edges == sorted(edges)
    assert all(edge <= loop.now_ns for edge in edges)
    assert sum(samples or 0 for samples in loop.samples) <= fetched
    assert len(loop.steps) <= sum(what == "step" for what, _ in happened)
