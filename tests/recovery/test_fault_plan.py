from __future__ import annotations

import pytest

from ett.errors import UsageError
from ett.recovery import FaultPlan, fault_plan
from ett.recovery.fault import ANY, EACH, Fault

SPECS = [
    "kill:rank=1,step=120",
    "exit:step=5,code=3,point=ckpt_before_commit",
    "raise:step=5,attempt=each,times=1",
    "hang:rank=2,step=7,attempt=3",
    "hang:how=gil,step=7,for=2s",
    "hang:how=reader,step=7",
    "stop:step=7,for=0.5",
    "slow:step=7,by=0.2,steps=3",
    "disk_full:step=40,saves=2",
    "store_slow:phase=restore,by=2s,for=1m",
    "store_fails:step=4,ops=1,tier=remote",
    "corrupt:phase=restore,attempt=2",
    "clock:step=3,by=-3600",
    "kill:phase=startup,gen=1",
    "kill:mtbf=10m,seed=3,times=2",
    "kill:step=3,times=2,attempt=1,gen=0",
    "stop:mtbf=200steps,rank=each,for=1",
    "kill:mtbf=200 steps",
    "store_slow:step=4,tier=local",
    "store_fails:step=4,tier=local",
    "hang:step=7,for=2000000",
    "clock:step=3,by=-1234567.25",
    "slow:step=7,by=0.00001",
]


def test_specs_say_what_fails_where() -> None:
    specs = ["kill:rank=1,step=120", "exit:step=5,code=3,point=ckpt_before_commit", "hang:rank=2,step=7,attempt=3"]
    assert FaultPlan.parse(specs).faults == (
        Fault(kind="kill", rank=1, step=120),
        Fault(kind="exit", rank=0, step=5, code=3, point="ckpt_before_commit"),
        Fault(kind="hang", rank=2, step=7, attempt=3),
    )


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("hang:how=reader,step=7", Fault(kind="hang", how="reader", step=7, point="data")),
        ("stop:step=7,for=0.5", Fault(kind="stop", step=7, for_s=0.5)),
        ("slow:step=7,by=200s", Fault(kind="slow", step=7, by_s=200.0)),
        ("disk_full:step=40,saves=2", Fault(kind="disk_full", step=40, point="ckpt_before_write", saves=2)),
        ("store_slow:phase=restore", Fault(kind="store_slow", point="restore", tier="remote")),
        ("kill:phase=save", Fault(kind="kill", point="ckpt_save")),
        ("clock:step=3,by=-1h", Fault(kind="clock", step=3, by_s=-3600.0)),
        ("kill:step=3,times=2", Fault(kind="kill", step=3, times=2, attempt=EACH, gen=EACH)),
        ("kill:mtbf=9m", Fault(kind="kill", mtbf="9m", rank=ANY, attempt=EACH, gen=EACH)),
        ("kill:mtbf=9m,rank=1,attempt=2", Fault(kind="kill", mtbf="9m", rank=1, attempt=2, gen=EACH)),
    ],
)
def test_what_is_left_out_is_what_the_kind_is_usually_wanted_for(spec: str, fault: Fault) -> None:
    assert FaultPlan.parse([spec]).faults == (fault,)


@pytest.mark.parametrize("spec", SPECS)
def test_a_plan_survives_the_environment(spec: str) -> None:
    plan = FaultPlan.parse([spec])
    assert FaultPlan.parse(str(plan).split()) == plan


def test_a_plan_made_in_python_is_the_one_of_the_same_words() -> None:
    made = FaultPlan().add("stop", rank=1, step=7, for_=2).add("kill", phase="startup")
    assert made == FaultPlan.parse(["stop:rank=1,step=7,for=2", "kill:phase=startup"])
    assert FaultPlan.parse(made.flags[1::2]) == made
    assert made.flags[::2] == ["--chaos", "--chaos"]


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
        "kill:step=1,",
        "kill:step=1,step=2",
        "exit:step=1,point=",
        "kill:step=1,point=step,phase=save",
        "kill:mtbf=10m,step=1",
        "kill:mtbf=auto",
        "kill:mtbf=0s",
        "kill:phase=restore,step=3",
        "hang:how=reader,phase=restore",
        "hang:how=reader,mtbf=3m",
        "slow:step=1,by=soon",
        "slow:step=1,by=-1",
    ],
)
def test_a_wrong_spec_is_refused_with_what_would_be_right(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse([spec])
    assert repr(spec) in caught.value.fact
    assert caught.value.expected


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("kil:step=1", "kill"),
        ("diskfull:step=1", "disk_full"),
        ("kill:stp=1", "step"),
        ("hang:step=1,how=gli", "gil"),
        ("kill:phase=startup_", "startup"),
        ("kill:point=ckpt_before_comit", "ckpt_before_commit"),
        ("disk_full:step=1,tier=locale", "local"),
        ("exit:step=1,cod=3", "code"),
    ],
)
def test_a_wrong_word_names_the_nearest_one(spec: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse([spec])
    assert f"did you mean {nearest!r}?" in caught.value.expected


def test_a_key_of_another_kind_has_no_meaning() -> None:
    with pytest.raises(UsageError, match="'code' has no meaning here"):
        FaultPlan.parse(["kill:step=1,code=2"])


def test_attempts_are_counted_from_the_launch() -> None:
    plan = FaultPlan.parse(["kill:rank=1,step=2", "kill:rank=1,step=2,attempt=2", "kill:mtbf=9m"]).starting_at(5)
    assert [fault.attempt for fault in plan.faults] == [5, 6, EACH]


def test_a_fault_happens_in_its_generation_only() -> None:
    plan = FaultPlan.parse(["kill:rank=1,step=7", "kill:rank=1,step=9,gen=1"])
    assert [f.step for f in plan.for_process(rank=1, attempt=1).faults] == [7]
    assert [f.step for f in plan.for_process(rank=1, attempt=1, gen=1).faults] == [9]
    assert str(plan).endswith("kill:rank=1,step=9,point=step,attempt=1,gen=1")


def test_a_machine_is_not_cut_off_from_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = FaultPlan.parse(["lost_host:step=3"])
    monkeypatch.setattr(fault_plan, "is_own_network", lambda: False)
    with pytest.raises(UsageError, match="no network of its own"):
        plan.check(1)
    monkeypatch.setattr(fault_plan, "is_own_network", lambda: True)
    plan.check(1)


def test_a_rank_that_the_job_does_not_have_is_refused() -> None:
    FaultPlan.parse(["kill:rank=1,step=3", "stop:rank=each,step=3", "kill:mtbf=3m"]).check(2)
    with pytest.raises(UsageError, match="no rank 1"):
        FaultPlan.parse(["kill:rank=1,step=3"]).check(1)
