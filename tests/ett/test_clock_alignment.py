"""Rule R16: times of many clocks on one line, with the supervisor's as the reference."""

from __future__ import annotations

from typing import Any

from ett.clock_alignment import align, ordered
from ett.event_schema import Record, build_record

SUP_WALL, SUP_MONO = 1_000_000, 500  # the supervisor's boot: normalised = mono + 999_500


def record(ev: str, mono: int, wall: int, src: str = "r0", boot: str = "far", **fields: Any) -> Record:
    common = {"v": 1, "job": "j", "att": 1, "src": src, "host": "h", "boot": boot, "pid": 1, "seq": 0}
    built = build_record(common | {"ev": ev, "mono_ns": mono, "wall_ns": wall} | fields, "f")
    assert built is not None
    return built


def supervisor(mono: int = SUP_MONO, wall: int = SUP_WALL, **fields: Any) -> Record:
    return record("heartbeat", mono, wall, src="sup", boot="home", **fields)


def times(*records: Record, as_of_ns: int | None = None) -> list[int]:
    return [item.time_ns for item in ordered(records, as_of_ns)[0]]


def test_the_supervisor_s_earliest_record_anchors_its_boot() -> None:
    jumped = supervisor(mono=700, wall=17)  # its wall clock was set back in between
    assert times(jumped, supervisor()) == [SUP_WALL, SUP_WALL + 200]


def test_a_rank_on_the_supervisor_s_boot_shares_its_clock() -> None:
    assert times(supervisor(), record("heartbeat", 600, 5, boot="home")) == [SUP_WALL, SUP_WALL + 100]


def test_the_clock_sync_with_the_least_error_wins_over_a_handshake() -> None:
    far = [
        record("clock_sync", 10, 2_000_010, peer="sup", offset_ns=1_000_000, error_ns=5),
        record("clock_sync", 20, 2_000_020, peer="sup", offset_ns=999_990, error_ns=2),
        record("clock_sync", 30, 2_000_030, peer="r9", offset_ns=0, error_ns=0),
        record("proc_start", 0, 2_000_000, parent_wall_ns=5),
    ]
    clocks = align([supervisor(), *far])
    assert clocks.constants["h", "far"] == 2_000_020 - 999_990 - 20
    assert clocks.uncertainty_ns == 2
    assert not clocks.unsynced


def test_the_latest_handshake_wins_without_a_clock_sync() -> None:
    slow = record("proc_start", 100, 7, parent_wall_ns=SUP_WALL)  # it took longest from spawn to its first record
    quick = record("proc_start", 90, 7, parent_wall_ns=SUP_WALL + 5)
    assert align([supervisor(), slow, quick]).constants["h", "far"] == SUP_WALL + 5 - 90


def test_a_clock_that_nothing_ties_is_flagged_and_keeps_its_wall_time() -> None:
    clocks = align([supervisor(), record("heartbeat", 50, 3_000_050), record("heartbeat", 70, 9)])
    assert clocks.constants["h", "far"] == 3_000_000
    assert clocks.unsynced == {("h", "far")}
    assert clocks.uncertainty_ns is None


def test_a_clock_sync_after_the_instant_asked_about_is_not_there_yet() -> None:
    early = record("heartbeat", 10, SUP_WALL + 10)
    late = record("clock_sync", 900, SUP_WALL + 900, peer="sup", offset_ns=7, error_ns=0)
    assert times(supervisor(), early, late, as_of_ns=SUP_WALL + 500) == [SUP_WALL, SUP_WALL + 10]
    assert times(supervisor(), early, late) == [SUP_WALL, SUP_WALL + 3, SUP_WALL + 893]
