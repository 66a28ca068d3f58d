from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.restart import AttemptFacts
from ett.world import Places, World, compile_workers, places_after


def test_ranks_are_dense_and_a_place_keeps_its_local_rank() -> None:
    world = World((0, 1, 2)).without(1)
    assert (world.size, [world.rank_at(place) for place in (0, 2)]) == (2, [0, 1])
    assert world.environ_at(2) == {
        "RANK": "1",
        "ROLE_RANK": "1",
        "WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }


@pytest.mark.parametrize(
    ("num_cores", "num_ranks", "workers"), [(16, 1, 16), (16, 8, 2), (128, 8, 16), (2, 8, 1), (1, 1, 1), (256, 2, 32)]
)
def test_ranks_of_a_host_share_its_cores_when_they_compile(num_cores: int, num_ranks: int, workers: int) -> None:
    assert compile_workers(num_cores, num_ranks) == workers


def places(*lives: AttemptFacts, fewest: int = 1) -> Places:
    return places_after(lives, num_places=3, fewest=fewest)


def failed(place: int, pid: int, *, has_stepped: bool = False, shrinks_to: int | None = None) -> AttemptFacts:
    return AttemptFacts(
        attempt=1, reason="failed", local_rank=place, pid=pid, has_stepped=has_stepped, shrinks_to=shrinks_to
    )


def test_a_place_is_given_up_at_its_second_failed_start() -> None:
    whole = World((0, 1, 2))
    assert places(failed(1, 11, has_stepped=True), fewest=2).smaller_world(1, whole) is None
    again = places(failed(1, 11, has_stepped=True), failed(1, 12), fewest=2)
    assert again.smaller_world(1, whole) == World((0, 2))
    assert again.smaller_world(0, whole) is None
    assert again.smaller_world(1, World((0, 1))) is None


def test_failures_after_a_step_are_no_second_one() -> None:
    assert places(failed(1, 11), failed(2, 12, has_stepped=True)).smaller_world(1, World((0, 1, 2))) is None


def test_a_process_whose_failure_is_told_twice_failed_once() -> None:
    assert places(failed(1, 11), failed(1, 11)).smaller_world(1, World((0, 1, 2))) == World((0, 2))
    assert places(failed(1, 11), failed(1, 11)).failed_starts == (1,)


def test_a_place_that_was_left_out_comes_back_once_the_job_has_made_a_step() -> None:
    left_out = (failed(1, 11), failed(1, 12, shrinks_to=2))
    assert places(*left_out).whole == World((0, 2))
    assert places(*left_out, failed(0, 13)).whole == World((0, 2))
    assert places(*left_out, failed(0, 13, has_stepped=True)).whole == World((0, 1, 2))


def test_what_says_nothing_of_a_process_says_nothing_of_its_place() -> None:
    stopped = AttemptFacts(attempt=1, reason="preempted", local_rank=1, pid=11)
    assert places(stopped, AttemptFacts(attempt=2, reason="failed", local_rank=1)).failed_starts == ()


@pytest.mark.slow
@given(st.integers(1, 5), st.data())
def test_a_world_is_never_smaller_than_was_allowed(num_places: int, data: st.DataObject) -> None:
    fewest = data.draw(st.integers(1, num_places))
    lives: list[AttemptFacts] = []
    for pid in range(1, 21):
        known = places_after(lives, num_places=num_places, fewest=fewest)
        assert fewest <= known.whole.size <= num_places
        place = data.draw(st.sampled_from(known.whole.places))
        stepped = data.draw(st.booleans())
        smaller = None if stepped else known.smaller_world(place, known.whole)
        shrinks_to = None if smaller is None else smaller.size
        lives.append(failed(place, pid, has_stepped=stepped, shrinks_to=shrinks_to))
