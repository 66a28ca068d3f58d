from __future__ import annotations

import os

import pytest

from ett.errors import UsageError
from ett.recovery.fault_plan import Fault, FaultPlan


class Exited(Exception):
    """Stands for the end of the process."""


def test_specs_say_what_fails_where() -> None:
    specs = ["kill:rank=1,step=120", "exit:step=5,code=3,point=ckpt_before_commit", "hang:rank=2,step=7,attempt=3"]
    assert FaultPlan.parse(specs).faults == (
        Fault(kind="kill", rank=1, step=120),
        Fault(kind="exit", rank=0, step=5, code=3, point="ckpt_before_commit"),
        Fault(kind="hang", rank=2, step=7, attempt=3),
    )


def test_a_plan_survives_the_environment() -> None:
    plan = FaultPlan.parse(["kill:rank=1,step=120", "exit:rank=0,step=5,code=3"])
    assert FaultPlan.parse(str(plan).split()) == plan


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "kill",
        "crash:step=1",
        "kill:",
        "kill:rank=1",
        "kill:step=x",
        "kill:step=-1",
        "kill:step=1,code=2",
        "kill:step=1,",
        "exit:step=1,point=",
    ],
)
def test_a_wrong_spec_shows_the_grammar(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse([spec])
    assert repr(spec) in caught.value.fact
    assert caught.value.expected


def test_attempts_are_counted_from_the_launch() -> None:
    plan = FaultPlan.parse(["kill:rank=1,step=2", "kill:rank=1,step=2,attempt=2"]).starting_at(5)
    assert [fault.attempt for fault in plan.faults] == [5, 6]


def test_only_the_named_process_at_the_named_place_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", end)
    plan = FaultPlan.parse(["exit:rank=1,step=5,code=3"])
    for other in (plan.for_process(rank=0, attempt=1), plan.for_process(rank=1, attempt=2)):
        other.fire("step", 5)
    mine = plan.for_process(rank=1, attempt=1)
    mine.fire("step", 4)
    mine.fire("ckpt_before_commit", 5)
    with pytest.raises(Exited, match="3"):
        mine.fire("step", 5)


def test_a_fault_happens_in_its_generation_only() -> None:
    plan = FaultPlan.parse(["kill:rank=1,step=7", "kill:rank=1,step=9,gen=1"])
    assert [f.step for f in plan.for_process(rank=1, attempt=1).faults] == [7]
    assert [f.step for f in plan.for_process(rank=1, attempt=1, gen=1).faults] == [9]
    assert str(plan).endswith("kill:rank=1,step=9,point=step,attempt=1,gen=1")
