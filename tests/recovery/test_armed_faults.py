"""The faults of one process, without that process's end."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from ett.checkpoint.local_store import LocalStore
from ett.errors import InjectedError, Unreachable
from ett.recovery import fault_actions
from ett.recovery.armed_faults import ArmedFaults, arm


class Told:
    """What the log was told, and what happened to the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.acts: list[str] = []
        self.slept: list[float] = []
        monkeypatch.setattr(fault_actions, "act", lambda fault: self.acts.append(fault.kind))
        monkeypatch.setattr(time, "sleep", self.slept.append)

    def emit(self, ev: str, **fields: Any) -> None:
        self.records.append((ev, fields))

    @property
    def injected(self) -> list[dict[str, Any]]:
        return [fields for ev, fields in self.records if ev == "fault_injected"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def armed(told: Told, chaos: str, job_dir: Path | None = None, **place: int) -> ArmedFaults:
    faults = arm(chaos, job_dir, **({"rank": 0} | place))
    assert faults is not None
    faults.begin(told.emit)
    return faults


def test_only_the_named_process_has_the_fault() -> None:
    chaos = "exit:rank=1,step=5,code=3"
    assert arm(chaos, None, rank=0) is None
    assert arm(chaos, None, rank=1, attempt=2) is None
    assert arm(chaos, None, rank=1, gen=1) is None
    assert arm(chaos, None, rank=1) is not None


def test_it_happens_at_its_place_once(told: Told) -> None:
    faults = armed(told, "stop:step=5 hang:point=ckpt_before_commit kill:phase=restore")
    for point, step in [("step", 4), ("ckpt_before_write", 5), ("restore", 0), ("step", 5), ("step", 5)]:
        faults.fire(point, step)
    faults.fire("ckpt_before_commit", 8)
    assert told.acts == ["kill", "stop", "hang"]


def test_an_injected_fault_is_in_the_log_before_it_happens(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    armed(told, "kill:step=5").fire("step", 5)
    (record,) = told.injected
    assert record == {"fault": "kill:rank=0,step=5,point=step,attempt=1", "kind": "kill", "point": "step", "step": 5}
    assert capsys.readouterr().err == "ett chaos: kill:rank=0,step=5,point=step,attempt=1\n"


def test_times_counts_over_all_processes_of_the_job(told: Told, tmp_path: Path) -> None:
    for attempt in (1, 2, 3):
        armed(told, "kill:step=5,times=2", tmp_path, attempt=attempt).fire("step", 5)
    assert told.acts == ["kill", "kill"]


def test_a_rate_in_steps_strikes_again_and_again(told: Told) -> None:
    faults = armed(told, "stop:mtbf=10steps,rank=0,for=1")
    for step in range(1, 1001):
        faults.fire("step", step)
    assert 60 < len(told.acts) < 140  # of 100, six standard deviations would be 60
    (drawn,) = [fields for ev, fields in told.records if ev == "fault_drawn"]
    assert drawn["after_steps"] > 0
    assert drawn["of_rank"] == 0


def test_a_rate_of_one_rank_leaves_the_others_alone(told: Told) -> None:
    faults = [armed(told, "stop:mtbf=10steps,for=1", rank=rank, world_size=2) for rank in (0, 1)]
    for step in range(1, 301):
        before = len(told.acts)
        for rank in faults:
            rank.fire("step", step)
        assert len(told.acts) - before <= 2
    assert {record["step"] for record in told.injected}


def test_a_slow_rank_is_slow_for_as_many_steps_as_it_says(told: Told) -> None:
    faults = armed(told, "slow:step=3,by=0.25,steps=2")
    for step in range(1, 8):
        faults.fire("step", step)
    assert told.slept == [0.25, 0.25]
    assert len(told.injected) == 1


def test_raise_raises() -> None:
    faults = arm("raise:step=2", None, rank=0)
    assert faults is not None
    with pytest.raises(InjectedError, match="raise:rank=0,step=2"):
        faults.fire("step", 2)


def test_a_full_disk_takes_nothing_more_until_its_saves_are_over(told: Told, tmp_path: Path) -> None:
    faults = armed(told, "disk_full:step=4,saves=2")
    store = faults.wrap(LocalStore(tmp_path), "local")
    store.create("before", b"x")
    for step in (4, 8):
        faults.fire("ckpt_before_write", step)
        with pytest.raises(Unreachable, match="no space left") as caught:
            store.create(f"d/{step}", b"x")
        assert caught.value.code == "S002"
        with pytest.raises(Unreachable, match="no space left"), store.create_stream(f"d/{step}") as file:
            file.write(b"x")
        assert store.read("before") == b"x"
    faults.fire("ckpt_before_write", 12)
    store.create("after", b"x")
    assert store.list("") == ["after", "before"]
    (record,) = told.injected
    assert (record["kind"], record["tier"], record["name"]) == ("disk_full", "local", "d/4")


def test_a_store_fails_as_many_operations_as_it_says(told: Told, tmp_path: Path) -> None:
    faults = armed(told, "store_fails:phase=restore,ops=2")
    store = faults.wrap(LocalStore(tmp_path), "local")
    store.create("a", b"x")
    faults.fire("restore", 0)
    for _ in range(2):
        with pytest.raises(Unreachable, match="injected"):
            store.read("a")
    assert store.read("a") == b"x"


def test_a_slow_store_waits_before_each_operation(told: Told, tmp_path: Path) -> None:
    faults = armed(told, "store_slow:step=4,by=2,ops=2")
    store = faults.wrap(LocalStore(tmp_path), "remote")
    faults.fire("ckpt_before_write", 4)
    for name in "abc":
        store.create(name, b"x")
    assert told.slept == [2.0, 2.0]


def test_a_tier_is_struck_alone_where_there_are_two(told: Told, tmp_path: Path) -> None:
    faults = armed(told, "store_fails:step=4,tier=remote")
    local, remote = (faults.wrap(LocalStore(tmp_path / tier), tier) for tier in ("local", "remote"))
    faults.fire("ckpt_before_write", 4)
    local.create("a", b"x")
    with pytest.raises(Unreachable):
        remote.create("a", b"x")


def test_damage_changes_one_bit_of_the_newest_data_file(told: Told, tmp_path: Path) -> None:
    faults = armed(told, "corrupt:phase=restore")
    store = faults.wrap(LocalStore(tmp_path), "local")
    data = bytes(range(200))
    for name in ("d/1", "dense/2", "commits/3"):
        store.create(name, data)
    faults.fire("restore", 0)
    (record,) = told.injected
    assert record["name"] == "dense/2"
    now = store.read("dense/2")
    (changed,) = [n for n in range(200) if now[n] != data[n]]
    assert bin(now[changed] ^ data[changed]).count("1") == 1
    assert store.read("d/1") == store.read("commits/3") == data


def test_without_a_file_to_damage_nothing_is_said_to_have_happened(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = armed(told, "corrupt:phase=restore")
    faults.wrap(LocalStore(tmp_path), "local")
    faults.fire("restore", 0)
    assert not told.injected
    assert "nothing to corrupt" in capsys.readouterr().err


def test_a_store_that_is_wrapped_is_still_that_store(told: Told, tmp_path: Path) -> None:
    inner = LocalStore(tmp_path)
    store: Any = armed(told, "corrupt:phase=restore").wrap(inner, "local")
    assert (store.uri, store.root) == (inner.uri, tmp_path)
    with store.create_stream("d/1") as file:
        assert file.write(memoryview(b"abc")) == 3
    with store.open("d/1") as reader:
        read = bytearray(3)
        assert reader.read_into(0, memoryview(read)) == 3
    assert io.BytesIO(read).read() == b"abc"
    assert store.entries("d")[0].num_bytes == store.size("d/1") == 3
