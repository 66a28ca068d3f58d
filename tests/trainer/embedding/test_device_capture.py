"""Rows in device memory as they were at a step boundary, read while training goes on; without a GPU on the host's."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from device_world import CACHES, PATIENT, Make, Nobody, batch, bits_set, empty_columns, make, rows_now, staging, train

from ett.checkpoint.capture.device_capture import DeviceCapture
from ett.checkpoint.capture.staged_rows import StagedRows
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.stall_budget import over_budget
from ett.checkpoint.table_segments import TableSpec
from ett.checkpoint.tracked_table import NOBODY_TRACKS
from ett.errors import ConfigError, CorruptState, Unreachable
from ett.raised import raised_by
from ett.trainer import EmbOptimType
from ett.trainer.embedding import block_capture
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.kernels import kept_rows

__all__ = ["make"]  # a fixture
SPEC = TableSpec(table_id="t0000", name="a", dim=8, groups=(ColumnGroup("weight", "float32", 8),))


def tracked(make: Make, optimizer: EmbOptimType, cache: CacheParams | None = None) -> tuple[Any, list[Any]]:
    tables = make(optimizer, cache)
    parts: list[Any] = list(tables.embedding_bags.values())
    for part in parts:
        part.track(Nobody())
    return tables, parts


def read(boundary: Any, part: Any, slots: list[int]) -> dict[int, list[bytes]]:
    columns = empty_columns(part, len(slots))
    boundary.read(np.array(slots, np.int64), columns)
    return {slot: [column[at].tobytes() for column in columns] for at, slot in enumerate(slots)}


def want(boundary: Any, slots: set[int], num_rows: int) -> None:
    mask = np.zeros(-(-num_rows // 64) * 64, np.uint8)
    mask[sorted(slots)] = 1
    boundary.want_only(np.packbits(mask, bitorder="little"))


def live_through(tables: Any, parts: list[Any], rng: random.Random) -> int:
    """Train, pass boundaries, and read the rows beside training; return how many were kept."""
    before: list[list[list[bytes]]] | None = None
    num_kept = 0
    for _ in range(3):
        for _ in range(rng.randrange(4)):
            train(tables, batch(rng))
        expected = [rows_now(part) for part in parts]
        memory = staging()
        boundaries = [part.at_boundary(memory, PATIENT) for part in parts]
        wanted = [set(range(len(part.weight))) for part in parts]
        for n, rows in enumerate(expected if before is not None else ()):
            changed = bits_set(boundaries[n].changed(), len(rows))
            assert before is not None and {s for s, row in enumerate(rows) if row != before[n][s]} <= changed
        if rng.random() < 0.5:  # only some are wanted
            train(tables, batch(rng))
            wanted = [{slot for slot in slots if rng.random() < 0.6} for slots in wanted]
            for boundary, slots, rows in zip(boundaries, wanted, expected, strict=True):
                want(boundary, slots, len(rows))
        left = [(n, slot) for n, slots in enumerate(wanted) for slot in sorted(slots)]
        rng.shuffle(left)
        found: list[dict[int, list[bytes]]] = [{} for _ in parts]
        while left:
            if rng.random() < 0.4:
                train(tables, batch(rng))
            some, left = left[:60], left[60:]
            for n, part in enumerate(parts):
                found[n] |= read(boundaries[n], part, sorted(slot for m, slot in some if m == n))
        for n, boundary in enumerate(boundaries):
            num_kept += boundary.counts.guard
            boundary.close()
            assert found[n] == {slot: expected[n][slot] for slot in wanted[n]}
        assert memory.pool.lent == 0
        before = expected
    tables.check()
    return num_kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("cache", CACHES, ids=["all", "rows_cached", "both_cached"])
def test_every_row_is_that_of_the_boundary(make: Make, cache: CacheParams | None, seed: int) -> None:
    optimizers = list(EmbOptimType)
    tables, parts = tracked(make, optimizers[(seed + CACHES.index(cache)) % len(optimizers)], cache)
    assert live_through(tables, parts, random.Random(seed))


def test_who_finds_a_row_kept_by_a_launch_that_the_host_has_not_noted_yet_waits_for_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, parts = tracked(make, EmbOptimType.EXACT_SGD)
    part, found, note = parts[1], list[BaseException | dict[int, list[bytes]]](), kept_rows.note_update
    expected = rows_now(part)
    boundary = part.at_boundary(staging(), PATIENT)
    rows = list(range(len(expected)))
    waits = threading.Event()
    monkeypatch.setattr(block_capture, "min", lambda *launches: waits.set() or min(*launches), raising=False)

    def reading() -> None:
        failure = raised_by(lambda: found.append(read(boundary, part, rows)))
        found.extend([failure] if failure is not None else [])
        waits.set()

    thread = threading.Thread(target=reading)

    def noted(*args: Any, **named: Any) -> None:
        note(*args, **named)
        if args[2] is not None and thread.ident is None:
            thread.start()
            assert waits.wait(60)

    monkeypatch.setattr(kept_rows, "note_update", noted)
    train(tables, batch(random.Random(1)))
    thread.join(60)
    assert found == [dict(enumerate(expected))]
    assert boundary.counts.guard
    boundary.close()


def test_a_launch_that_fails_fails_the_save_and_says_why(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, parts = tracked(make, EmbOptimType.EXACT_SGD)
    boundary, note = parts[1].at_boundary(staging(), PATIENT), kept_rows.note_update

    def noted(*args: Any, **named: Any) -> None:
        note(*args, **named)
        if args[2] is not None:
            raise RuntimeError("no such kernel")

    monkeypatch.setattr(kept_rows, "note_update", noted)
    with pytest.raises(RuntimeError, match="no such kernel"):
        train(tables, batch(random.Random(1)))
    with pytest.raises(CorruptState, match="no such kernel"):
        read(boundary, parts[1], list(range(90)))
    boundary.close()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["the update keeps no row", "a claim gets every row"])
def test_without_a_rule_wrong_rows_are_found(make: Make, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    if rule == "the update keeps no row":
        monkeypatch.setattr(kept_rows, "note_update", lambda *args, **named: None)
    else:
        claim = kept_rows.claim

        def greedy(rows_N: torch.Tensor, wanted: torch.Tensor, words: torch.Tensor, out: torch.Tensor) -> None:
            claim(rows_N, wanted, words, out)
            out[:-1] = 1

        monkeypatch.setattr(kept_rows, "claim", greedy)
    tables, parts = tracked(make, EmbOptimType.EXACT_SGD)
    with pytest.raises(AssertionError):
        for seed in range(10):
            live_through(tables, parts, random.Random(seed))


@pytest.mark.slow
def test_training_waits_for_room_and_counts_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows in a batch than the ring has, and more kept than there is memory for until the writer reads."""
    tables, parts = tracked(make, EmbOptimType.EXACT_SGD)
    rng, part = random.Random(1), parts[1]
    expected = rows_now(part)
    memory = staging(host_bytes=512)
    boundary = part.at_boundary(memory, PATIENT)
    drained = block_capture.BlockCapture._take_all

    def reading(self: Any, *args: Any, **named: Any) -> bool:
        """The writer comes when training would wait for ever."""
        found.update(read(boundary, part, list(range(len(found), min(len(found) + 30, 90)))))
        return bool(has_room(self, *args, **named))

    found: dict[int, list[bytes]] = {}
    has_room = block_capture.BlockCapture._reserve
    monkeypatch.setattr(block_capture.BlockCapture, "_reserve", reading)
    for _ in range(30):
        train(tables, batch(rng, size=40))
    assert found == dict(enumerate(expected))
    assert drained is block_capture.BlockCapture._take_all and boundary.counts.guard
    boundary.close()


def test_a_boundary_that_no_checkpoint_used_has_its_rows_changed_again(make: Make) -> None:
    tables, (part, *_) = tracked(make, EmbOptimType.EXACT_SGD)
    rng = random.Random(2)
    train(tables, batch(rng))
    first = part.at_boundary(None, PATIENT)
    changed = bits_set(first.changed(), 170)
    assert changed
    first.put_back()
    train(tables, batch(rng))
    assert changed < bits_set(part.at_boundary(None, PATIENT).changed(), 170)
    assert not bits_set(part.at_boundary(None, PATIENT).changed(), 170)


@pytest.mark.slow
def test_a_drain_that_fails_fails_the_checkpoint_and_not_training(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any) -> None:
        raise RuntimeError("the link is gone")

    monkeypatch.setattr(block_capture.BlockCapture, "_take", broken)
    tables, (part, *_) = tracked(make, EmbOptimType.EXACT_SGD)
    rng = random.Random(3)
    boundary = part.at_boundary(staging(), PATIENT)
    for _ in range(20):
        train(tables, batch(rng, size=40))
    with pytest.raises(CorruptState, match="the link is gone"):
        read(boundary, part, list(range(170)))
    boundary.close()


def test_a_batch_that_changes_no_row_keeps_none(make: Make) -> None:
    tables, (part, *_) = tracked(make, EmbOptimType.EXACT_SGD, CacheParams(load_factor=0.5))
    expected = rows_now(part)
    boundary = part.at_boundary(staging(), PATIENT)
    pooled = tables(batch(random.Random(4))).values()
    (pooled * torch.full_like(pooled, float("nan"))).sum().backward()
    assert read(boundary, part, list(range(170))) == dict(enumerate(expected))
    assert not boundary.counts.guard
    boundary.close()
    assert not bits_set(part.at_boundary(None, PATIENT).changed(), 170)


def test_a_table_that_nobody_tracks_costs_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, parts = tracked(make, EmbOptimType.EXACT_SGD)
    noted: list[Any] = []
    monkeypatch.setattr(kept_rows, "note_update", lambda *args, **named: noted.append(args))
    train(tables, batch(random.Random(5)))
    assert len(noted) == 2  # blocks
    for part in parts:
        part.track(NOBODY_TRACKS)
    train(tables, batch(random.Random(6)))
    assert len(noted) == 2


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "after a step"])
def test_a_boundary_that_only_some_tables_came_to_loses_no_change(make: Make, goes_on: bool) -> None:
    """Tables a and c share a block; whatever ended the save came between the two."""
    tables, (a, _, c) = tracked(make, EmbOptimType.EXACT_SGD)
    rng = random.Random(7)
    train(tables, batch(rng, size=40))
    rows = {part.name: rows_now(part) for part in (a, c)}
    before = {part.name: rows_now(part) for part in list(make(EmbOptimType.EXACT_SGD).embedding_bags.values())}
    a.at_boundary(None, PATIENT).put_back()
    if goes_on:
        train(tables, batch(rng, size=1))
    for part in (a, c):
        has_changed = {n for n, row in enumerate(rows[part.name]) if row != before[part.name][n]}
        assert has_changed and has_changed <= bits_set(part.at_boundary(None, PATIENT).changed(), len(part.weight))


def test_a_device_without_room_for_the_ring_is_told_of_and_loses_no_change(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    tables, (part, *_) = tracked(make, EmbOptimType.EXACT_SGD)
    train(tables, batch(random.Random(8)))
    with monkeypatch.context() as patched:
        patched.setattr(block_capture, "Ring", no_room)
        with pytest.raises(ConfigError, match=r"checkpoint\.device_staging_bytes"):
            part.at_boundary(staging(), PATIENT)
    assert bits_set(part.at_boundary(None, PATIENT).changed(), 170)


def test_who_reads_while_a_save_is_given_up_is_told_why(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows have been found in staging memory, and are not there any more when it takes them."""
    tables, (part, *_) = tracked(make, EmbOptimType.EXACT_SGD)
    memory, rng = staging(), random.Random(9)
    capture = DeviceCapture(SPEC, part, part.at_boundary(memory, PATIENT))
    for _ in range(4):
        train(tables, batch(rng, size=20))
    find = StagedRows.find

    def found_and_given_up(self: StagedRows, ids: Any) -> Any:
        places = find(self, ids)
        capture.give_up(over_budget("training waited"))
        return places

    monkeypatch.setattr(StagedRows, "find", found_and_given_up)
    every = np.arange(170)
    with pytest.raises(Unreachable, match="training waited"):
        capture.gather(every, empty_columns(part, 170))
        capture.check()
    with pytest.raises(Unreachable, match="training waited"):
        capture.gather(every, empty_columns(part, 170))
    capture.close()
    assert memory.pool.lent == 0
