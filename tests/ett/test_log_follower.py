"""Following a growing log gives the answer of reading it whole, and reads nothing twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ett import log_follower
from ett.accounting import account
from ett.event_line import encode_line
from ett.event_reader import read_folder
from ett.live_account import LiveAccount
from ett.log_follower import LogFollower
from ett.report import build_report
from ett.ring_tail import Tail

NS = 10**9


def lines(src: str, records: list[dict[str, Any]]) -> bytes:
    common = {"v": 1, "job": "j", "gen": 0, "src": src, "host": "h", "boot": "b", "pid": 1 if src == "sup" else 2}
    numbered = ({"seq": seq, "wall_ns": r["mono_ns"] + 10**18} | r for seq, r in enumerate(records))
    return b"".join(encode_line(common | record) for record in numbered)


def job() -> dict[str, bytes]:
    supervisor = [
        {"ev": "job_submitted", "att": 0, "mono_ns": 0},
        {"ev": "attempt_started", "att": 1, "mono_ns": NS, "world": 1},
    ]
    steps = [
        {"ev": "step", "att": 1, "mono_ns": (3 + n) * NS, "b_mono": (2 + n) * NS, "e_mono": (3 + n) * NS, "step": n}
        | {"c0": n, "c1": n + 1}
        for n in range(40)
    ]
    half = {"1/r0-h-2-b.jsonl": lines("r0", steps[:20]), "1/r0-h-2-b.1.jsonl": lines("r0", steps[20:])}
    return {"0/sup-h-1-b.jsonl": lines("sup", supervisor), **half}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_grows_by_any_bytes_is_followed_exactly(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    follower = LogFollower(tmp_path, live := LiveAccount())
    events = tmp_path / "events"
    events.mkdir()
    taken = 0
    for name, data in job().items():
        path = events / name
        path.parent.mkdir(exist_ok=True)
        while data:
            size = rng.randint(1, 900)
            with path.open("ab") as file:
                file.write(data[:size])
            data = data[size:]  # noqa: PLW2901 - what is left
            taken += follower.poll()
            now_ns = 10**18 + 60 * NS
            whole = account(read_folder(tmp_path), as_of_ns=now_ns, cut_at_as_of=False)
            found = live.account(now_ns)
            assert (found is None) == (whole is None)
            if found is not None and whole is not None:
                assert build_report(found).detail_ns == build_report(whole).detail_ns
    assert taken == sum(path.stat().st_size for path in events.rglob("*.jsonl"))
    assert follower.poll() == 0


def test_what_waits_in_a_ring_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follower = LogFollower(tmp_path, live := LiveAccount())
    for name, data in job().items():
        path = tmp_path / "events" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    name, whole = "1/r0-h-2-b.1.jsonl", job()["1/r0-h-2-b.1.jsonl"]
    path, half = tmp_path / "events" / name, whole.index(b"\n", len(whole) // 2) + 1
    path.write_bytes(whole[:half])
    monkeypatch.setattr(
        log_follower, "waiting_tails", lambda _: {name: Tail(offset=half - 50, lines=whole[half - 50 :])}
    )
    size = sum(map(len, job().values()))
    assert follower.poll() == size  # as if the file had it
    path.write_bytes(whole)
    assert follower.poll() == 0
    expected = account(read_folder(tmp_path), as_of_ns=10**18 + 60 * NS, cut_at_as_of=False)
    found = live.account(10**18 + 60 * NS)
    assert found is not None
    assert expected is not None
    assert build_report(found) == build_report(expected)


def test_what_waits_for_a_file_that_is_yet_to_be_made_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = LogFollower(tmp_path, live := LiveAccount())
    (name, whole), *others = reversed(job().items())
    for other, data in others:
        path = tmp_path / "events" / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    waiting = {name.replace(".jsonl", ".waiting.jsonl"): Tail(offset=0, lines=whole)}
    monkeypatch.setattr(log_follower, "waiting_tails", lambda _: waiting)
    assert follower.poll() == sum(map(len, job().values()))
    (tmp_path / "events" / name).write_bytes(whole)
    assert follower.poll() == 0  # the ring was looked at just before
    assert live.num_records == 42
    assert live.is_incremental
