"""Who hangs and who only works for long. Row numbers are those of the table of pitfalls in docs/supervisor.md."""

from __future__ import annotations

import pytest

from ett.errors import ConfigError
from ett.hang import RankProgress
from ett.recovery.config import RecoveryConfig
from ett.recovery.hang_limits import HangLimits
from ett.recovery.hang_policy import auto_limit_s, find_hang

CONFIG = RecoveryConfig(hang_after="10m", hang_limits=HangLimits(eval="1h", init="30m", shutdown="off"))


def rank(number: int, idle_s: float, **fields: object) -> RankProgress:
    given = {"num_steps": 100, "last_step": 100, "step_idle_s": idle_s} | fields
    return RankProgress(rank=number, idle_s=idle_s, **given)  # type: ignore[arg-type]


def hanging(*ranks: RankProgress, config: RecoveryConfig = CONFIG) -> int | None:
    hang = find_hang(ranks, config)
    return None if hang is None else hang.rank


def test_all_ranks_idle_for_longer_than_the_limit_hang_and_the_first_to_stop_is_named() -> None:
    assert hanging(rank(0, 601), rank(1, 602)) == 1
    assert hanging(rank(0, 602), rank(1, 601, last_step=99)) == 1
    assert hanging(rank(0, 599), rank(1, 700)) is None


@pytest.mark.parametrize(
    ("span", "limit_s"),
    [
        ("eval", 3600),
        ("compile", 3600),
        ("restore", 3600),
        ("data_warmup", 3600),
        ("ckpt_save", 1800),
        ("imports", 1800),
    ],
)
def test_row_2_a_span_in_flight_has_a_limit_of_its_own(span: str, limit_s: int) -> None:
    busy = {"spans": ("unheard_of", span, "unheard_of")}
    assert hanging(rank(0, limit_s - 1, **busy)) is None
    assert hanging(rank(0, limit_s + 1, **busy)) == 0


def test_row_2_ranks_that_wait_for_the_evaluation_of_another_do_not_hang() -> None:
    assert hanging(rank(0, 1800, spans=("eval",)), rank(1, 1800)) is None
    assert hanging(rank(0, 3601, spans=("eval",)), rank(1, 3601)) is not None


def test_a_rank_that_stands_still_while_another_steps_on_hangs() -> None:
    assert hanging(rank(0, 0, last_step=900), rank(1, 601)) == 1
    assert hanging(rank(0, 0, last_step=101), rank(1, 599)) is None


def test_work_that_cannot_be_told_from_a_hang_is_not_judged() -> None:
    before_steps = rank(0, 10**6, num_steps=0, last_step=None)
    assert hanging(before_steps) is None
    assert hanging(rank(0, 10**6, has_ended_training=True)) is None
    assert hanging(rank(0, 10**6, spans=("my_export",))) is None
    assert hanging(rank(0, 10**6, spans=("teardown",))) is None  # its limit is off
    assert hanging(before_steps, rank(1, 1801, spans=("process_group",))) == 1


def test_the_first_steps_may_compile_unseen() -> None:
    assert hanging(rank(0, 3599, num_steps=2)) is None
    assert hanging(rank(0, 3601, num_steps=0, is_in_step=True, last_step=None)) == 0


def test_auto_follows_the_jobs_own_steps_within_bounds() -> None:
    assert [auto_limit_s(pause_s) for pause_s in (0.01, 60, 1000)] == [900, 1200, 3600]
    config = RecoveryConfig()
    assert hanging(rank(0, 1100, longest_pause_s=60), rank(1, 1100), config=config) is None
    assert hanging(rank(0, 1201, longest_pause_s=60), rank(1, 1201), config=config) is not None


@pytest.mark.parametrize("off", ["off", "0"])
def test_off_means_off(off: str) -> None:
    assert hanging(rank(0, 10**9), config=RecoveryConfig(hang_after=off)) is None


@pytest.mark.parametrize("text", ["soon", "10 steps", "-5m", ""])
def test_a_limit_without_a_meaning_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"recovery\.hang_after"):
        RecoveryConfig(hang_after=text)
    with pytest.raises(ConfigError, match=r"recovery\.hang_limits\.eval"):
        HangLimits(eval=text)
