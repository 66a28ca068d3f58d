from __future__ import annotations

from itertools import islice, pairwise
from statistics import mean

from ett.recovery.fault import parse_fault
from ett.recovery.fault_draws import FaultPlace, drawn_rank, draws

FAULT = parse_fault("kill:mtbf=100s,seed=4")


def test_every_rank_draws_the_same() -> None:
    first, other = (list(islice(draws(FAULT, FaultPlace(rank=rank, world_size=3)), 50)) for rank in (0, 2))
    assert first == other
    assert {draw.rank for draw in first} == {0, 1, 2}


def test_waits_have_the_mean_that_was_asked_for() -> None:
    times = [0.0, *(draw.after for draw in islice(draws(FAULT, FaultPlace(rank=0)), 4000))]
    waits = [later - earlier for earlier, later in pairwise(times)]
    # Six standard deviations of the mean of 4,000 exponential waits.
    assert abs(mean(waits) - 100) < 6 * 100 / 4000**0.5
    assert min(waits) > 0


def test_another_attempt_or_seed_draws_others() -> None:
    of = [
        next(draws(FAULT, FaultPlace(rank=0))),
        next(draws(FAULT, FaultPlace(rank=0, attempt=2))),
        next(draws(FAULT, FaultPlace(rank=0, gen=1))),
        next(draws(parse_fault("kill:mtbf=100s,seed=5"), FaultPlace(rank=0))),
    ]
    assert len({draw.after for draw in of}) == 4


def test_a_rank_that_is_drawn_is_one_of_the_world() -> None:
    ranks = {
        drawn_rank(parse_fault(f"kill:rank=any,step=3,seed={seed}"), FaultPlace(rank=0, world_size=3))
        for seed in range(40)
    }
    assert ranks == {0, 1, 2}
