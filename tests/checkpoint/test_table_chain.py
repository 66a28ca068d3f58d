"""What policies decide of a table, and where it stands after that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ett.checkpoint.policy.access_counter import NUM_VALUES
from ett.checkpoint.policy.io_cost import IoCost, next_threshold
from ett.checkpoint.policy.period import Population
from ett.checkpoint.policy.save_policy import (
    NAMES,
    Adaptive,
    CheckNRun,
    Differential,
    Full,
    Incremental,
    Policy,
    parse_policy,
)
from ett.checkpoint.policy.table_chain import END_OF_IDS, LOWEST_ID, TableChain, decide
from ett.errors import ConfigError

COST = IoCost(saved_s=6.0, restorable_s=1.0)


def rows(p: float, num_rows: float = 1e6) -> Population:
    return Population(np.full(NUM_VALUES, p), np.full(NUM_VALUES, num_rows / NUM_VALUES))


def bases(
    policy: Policy, num_checkpoints: int, p: float = 0.1, num_parts: int = 1, hot_share: float = 0.5
) -> list[range]:
    """Return the parts that get a base at each of the first checkpoints."""
    chain, found = TableChain(bounds=tuple(range(100, 100 * num_parts, 100))), []
    for seq in range(1, num_checkpoints + 1):
        decision = decide(policy, chain, COST, rows(p))
        chain = chain.after(decision, seq, hot_share)
        found.append(decision.base)
    return found


@pytest.mark.parametrize("policy", [Full(), Incremental(), Differential(), CheckNRun(), Adaptive()])
def test_the_first_checkpoint_is_a_base_of_everything(policy: Policy) -> None:
    assert bases(policy, 1, num_parts=3) == [range(3)]


def test_full_is_a_base_every_time() -> None:
    assert bases(Full(), 4) == [range(1)] * 4


@pytest.mark.parametrize("policy", [Incremental(3), Differential(3)])
def test_a_chain_has_max_chain_checkpoints_after_its_base(policy: Policy) -> None:
    assert [seq for seq, base in enumerate(bases(policy, 9), start=1) if base] == [1, 5, 9]


def test_classes_of_the_fixed_policies() -> None:
    chain = TableChain(ages=(1,), base_seqs=(1,))
    is_hot = {policy: decide(policy, chain, COST, rows(0.5)).is_hot for policy in (Incremental(), Differential())}
    assert not is_hot[Incremental()].any()
    assert is_hot[Differential()].all()
    assert decide(CheckNRun(), chain, COST, rows(0.5)).is_hot.all()


def test_check_n_run_begins_a_cycle_when_the_last_one_cost_the_average() -> None:
    """1 + 0.5 n <= 0.5 (n + 1) never holds, 1 + n <= n + 1 always."""
    assert [bool(base) for base in bases(CheckNRun(), 9, hot_share=0.5)] == [True, *[False] * 8]
    assert [bool(base) for base in bases(CheckNRun(), 5, hot_share=1.0)] == [True, False] * 2 + [True]


def test_a_base_of_adaptive_is_spread() -> None:
    """Every part has its turn within a period, none twice, and no checkpoint has more than its share and one.

    The first of 16 parts waits for half a period and its share, which is a sixteenth.
    """
    period = decide(Adaptive(95), TableChain(ages=(1,), base_seqs=(1,)), COST, rows(0.02)).solution
    assert period is not None
    found = bases(Adaptive(95), 6 * period.period, p=0.02, num_parts=16)
    assert max(len(base) for base in found[1:]) <= -(-16 // period.period) + 1
    assert next(seq for seq, base in enumerate(found) if seq and base) == -(-9 * period.period // 16)
    settled = found[2 * period.period : 3 * period.period]
    turns = [part for base in settled for part in base]
    assert len(turns) == pytest.approx(16, abs=2)
    assert len(set(turns)) == len(turns)


def test_parts_of_one_base_are_neighbours() -> None:
    assert all(base.step == 1 and base.stop <= 16 for base in bases(Adaptive(5), 60, p=0.3, num_parts=16))


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
def test_bases_of_small_tables_do_not_come_together(is_restarted: bool) -> None:
    """Eight tables of one part: no two have a base at the same checkpoint, and each has one in a period."""
    chains = [TableChain(stagger=number / 8) for number in range(8)]
    if is_restarted:
        chains = [replace(chain, ages=(3,), base_seqs=(1,), credit=chain.stagger) for chain in chains]
    counts = []
    for seq in range(1, 45):
        decisions = [decide(Adaptive(95), chain, COST, rows(0.05)) for chain in chains]
        chains = [chain.after(decision, seq, 0.0) for chain, decision in zip(chains, decisions, strict=True)]
        counts.append(sum(bool(decision.base) for decision in decisions))
        period = decisions[0].solution.period if decisions[0].solution else 0
    assert period > 10
    assert max(counts[1:]) == 1
    assert sum(counts[-period:]) == 8


@pytest.mark.slow
@pytest.mark.parametrize("restarts_every", [3, 7, 1000])
@pytest.mark.parametrize("num_parts", [1, 16])
def test_no_part_of_adaptive_has_a_longer_chain_than_it_may(restarts_every: int, num_parts: int) -> None:
    """Of rows that hardly change, bases would hardly be worth it; a restart forgets how far the next one is."""
    policy, longest = Adaptive(max_chain=12), 0
    chain = TableChain(bounds=tuple(range(1, num_parts)))
    for seq in range(1, 100):
        chain = chain.after(decide(policy, chain, COST, rows(1e-6)), seq, 0.0)
        longest = max(longest, *chain.ages)
        if seq % restarts_every == 0:
            chain = replace(chain, ages=(max(chain.ages),) * num_parts, credit=0.0)
    assert longest == 12 if restarts_every < 1000 else longest <= 12


def test_a_row_is_hot_if_its_odds_are_above_what_the_rest_of_the_period_asks() -> None:
    odds = np.linspace(0, 1, NUM_VALUES)
    population = Population(odds, np.where(odds < 0.2, 1e5, 10))
    chain = TableChain(bounds=(10,), ages=(1, 4), base_seqs=(5, 2))
    decision = decide(Adaptive(95), chain, COST, population)
    assert decision.solution is not None
    period = decision.solution.period
    assert period > 6
    for part, age in enumerate(chain.ages):
        bound = next_threshold(COST.weight, period - age - 1)
        assert (decision.is_hot[part] == (odds > bound)).all()
    assert decision.is_hot[0].sum() > decision.is_hot[1].sum()


def test_a_write_limit_makes_periods_longer() -> None:
    chain = TableChain(ages=(1,), base_seqs=(1,))
    free = decide(Adaptive(95), chain, COST, rows(0.1)).solution
    assert free is not None
    tight = decide(Adaptive(95), chain, COST, rows(0.1), most_records=0.9 * free.records_per_interval).solution
    assert tight is not None
    assert tight.period > free.period
    assert tight.records_per_interval <= 0.9 * free.records_per_interval * 1.000001


def test_ids_of_parts_cover_all_ids_once() -> None:
    chain = TableChain(bounds=(-5, 0, 7))
    assert [chain.ids_of(range(k, k + 1)) for k in range(4)] == [
        range(LOWEST_ID, -5),
        range(-5, 0),
        range(7),
        range(7, END_OF_IDS),
    ]
    assert chain.parts_of(np.array([LOWEST_ID, -6, -5, -1, 0, 6, 7, END_OF_IDS - 1])).tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


@pytest.mark.parametrize(
    ("name", "policy"),
    list(zip(NAMES, [Adaptive(7), Full(), Incremental(7), Differential(7), CheckNRun()], strict=True)),
)
def test_policies_are_spelled_as_in_a_recipe(name: str, policy: Policy) -> None:
    assert parse_policy(name, 7) == policy


@pytest.mark.parametrize(("name", "max_chain", "match"), [("hybrid", 3, "checkpoint.policy"), ("full", 0, "max_chain")])
def test_an_unknown_policy_is_refused(name: str, max_chain: int, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_policy(name, max_chain)
    with pytest.raises(ConfigError, match="parts"):
        Adaptive(parts=0)
