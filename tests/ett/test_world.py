from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.world import Places, World


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


def test_a_place_is_given_up_at_its_second_failed_start() -> None:
    places = Places(3, fewest=2)
    assert places.note_failure(1, places.whole, has_stepped=True) is None
    assert places.note_failure(1, places.whole, has_stepped=False) is None
    assert places.note_failure(1, places.whole, has_stepped=False) == World((0, 2))


def test_failures_of_other_places_or_after_a_step_are_no_second_one() -> None:
    places = Places(3, fewest=1)
    assert places.note_failure(0, places.whole, has_stepped=False) is None
    assert places.note_failure(1, places.whole, has_stepped=False) is None
    places.note_failure(2, places.whole, has_stepped=True)
    assert places.note_failure(1, places.whole, has_stepped=False) is None


def test_a_place_that_was_left_out_comes_back_once_the_job_has_made_a_step() -> None:
    places = Places(3, fewest=1)
    places.leave_out(1)
    assert places.whole == World((0, 2))
    places.note_failure(0, places.whole, has_stepped=False)
    assert places.whole == World((0, 2))
    places.note_failure(0, places.whole, has_stepped=True)
    assert places.whole == World((0, 1, 2))


@pytest.mark.slow
@given(st.integers(1, 5), st.data())
def test_a_world_is_never_smaller_than_was_allowed(num_places: int, data: st.DataObject) -> None:
    fewest = data.draw(st.integers(1, num_places))
    places = Places(num_places, fewest)
    for _ in range(20):
        world = places.whole
        place = data.draw(st.sampled_from(world.places))
        if places.note_failure(place, world, has_stepped=data.draw(st.booleans())) is not None:
            places.leave_out(place)
        assert fewest <= places.whole.size <= num_places
