"""No damaged byte is ever trained on: flips, zeros, truncations, swaps, renames and losses of any file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks, holds, restored_world, saved_world

from ett.checkpoint.bench.every_byte import flip_every_byte
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.verify import LEVELS, damage
from ett.errors import CorruptState, NotFound, RestoreFailed

Fault = Callable[[Path, random.Random, list[Path]], None]


def flip(path: Path, rng: random.Random, others: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def zero(path: Path, rng: random.Random, others: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    # A hole of zeros where there was something: a page that a power loss kept from the disk.
    start = rng.choice([i for i, byte in enumerate(data) if byte])
    length = min(len(data) - start, rng.choice([1, 16, 512, 4096]))
    data[start : start + length] = bytes(length)
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random, others: list[Path]) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def append(path: Path, rng: random.Random, others: list[Path]) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice([1, 24, 52, 4096])))


def lose(path: Path, rng: random.Random, others: list[Path]) -> None:
    path.unlink()


def swap(path: Path, rng: random.Random, others: list[Path]) -> None:
    other = rng.choice([other for other in others if other.read_bytes() != path.read_bytes()])
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def replace_by_another(path: Path, rng: random.Random, others: list[Path]) -> None:
    path.write_bytes(rng.choice([o for o in others if o.read_bytes() != path.read_bytes()]).read_bytes())


FAULTS: list[Fault] = [flip, zero, truncate, append, lose, swap, replace_by_another]
FILES = ("commits/*", "m/*/*", "d/*/*/*", "dense/*/*", "FORMAT.json")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    saved_world(folder, 2, [1, 2])
    return folder


def files_of_newest(folder: Path) -> list[Path]:
    """Return the record and every file of the newest commit, and FORMAT.json."""
    log = CommitLog(LocalStore(folder))
    newest = log.read(max(log.seqs()))
    return [folder / name for name in (*(file.path for file in newest.stored_files()),)] + [
        folder / f"commits/{newest.seq:016d}.json"
    ]


def is_detected(folder: Path) -> bool:
    commits, damaged = CommitLog(LocalStore(folder)).read_all()
    if damaged or max(commits) != 3:
        return True
    return damage(LocalStore(folder), commits[3], "hash") is not None


@pytest.mark.parametrize(
    "times", [pytest.param(15, marks=pytest.mark.slow), pytest.param(90, marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_in_the_newest_commit_is_detected_and_stepped_over(
    pristine: Path, tmp_path: Path, fault: Fault, times: int
) -> None:
    """A restore gives the commit before it or, when the damage also hit that one (a swap), refuses."""
    rng = random.Random(f"{fault.__name__} {times}")
    for number in range(times):
        folder = tmp_path / str(number)
        shutil.copytree(pristine, folder)
        every = sorted(path for path in folder.rglob("*") if path.is_file())
        path = rng.choice(files_of_newest(folder))
        before = path.read_bytes()
        fault(path, rng, [other for other in every if other != path])
        what = f"{fault.__name__} {number}: {path.relative_to(folder)}"
        assert not path.exists() or path.read_bytes() != before, what
        assert is_detected(folder), what
        try:
            world = restored_world(folder, rng.choice([1, 2, 3]))
        except RestoreFailed:
            assert fault is swap, what
            continue
        assert holds(world, 1), what
        if fault is not lose or path.parent.name != "commits":
            assert world[0][1].fallback_from == 3, what


@pytest.mark.slow
def test_every_byte_of_a_small_segment_counts(pristine: Path, tmp_path: Path) -> None:
    """Reading rows verifies the whole file, padding included: `verify` is not needed to be safe."""
    from ett.checkpoint.table_reader import read_rows

    log = CommitLog(LocalStore(pristine))
    table = log.read(3).tables[0]
    file = table.files[0]
    data = (pristine / file.stored.path).read_bytes()
    store = LocalStore(tmp_path)
    target = tmp_path / file.stored.path
    target.parent.mkdir(parents=True)
    silent, buffers = [], BufferPool()
    for offset in range(len(data)):
        target.write_bytes(data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :])
        try:
            list(read_rows(store, table.spec, file, lambda ids: ids > 0, buffers))
            silent.append(offset)
        except CorruptState:
            continue
    assert len(data) > 10_000
    assert not silent


@pytest.mark.slow
def test_every_byte_of_every_file_of_a_checkpoint_counts(tmp_path: Path) -> None:
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)))
    rank.fill(1)
    rank.model.fill(1, num_rows=760)
    rank.checkpointer.save(1, 10)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) > 64 << 10
    flips = flip_every_byte(tmp_path, "hash")
    assert flips.injected > 64 << 10
    assert flips.silent == []


def test_without_verification_flips_would_be_silent(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1])
    flips = flip_every_byte(tmp_path, "size")
    assert len(flips.silent) == flips.injected > 10_000


def test_a_damaged_block_is_named_with_its_rows(pristine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(pristine, folder)
    store = LocalStore(folder)
    commit = CommitLog(store).read(3)
    table = next(table for table in commit.tables if table.spec.name == "users")
    path = folder / table.files[0].stored.path
    data = bytearray(path.read_bytes())
    data[4096 * 2 + 100] ^= 1
    path.write_bytes(data)
    found = damage(store, commit, "hash")
    assert found is not None
    for word in ("table users", table.files[0].stored.path, "block ", "section ", "ids "):
        assert word in found.fact


def test_zeros_over_the_length_and_the_checksum_of_a_header_are_stepped_over(pristine: Path, tmp_path: Path) -> None:
    """The checksum of no bytes is 0: the two zeros agree with each other."""
    folder = tmp_path / "folder"
    shutil.copytree(pristine, folder)
    path = folder / CommitLog(LocalStore(folder)).read(3).tables[0].files[0].stored.path
    data = bytearray(path.read_bytes())
    data[8:16] = bytes(8)
    path.write_bytes(data)
    assert holds(restored_world(folder, 1), 1)


def test_the_levels_see_more_and_more(pristine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(pristine, folder)
    store = LocalStore(folder)
    commit = CommitLog(store).read(3)
    assert [damage(store, commit, level) for level in LEVELS] == [None] * 4
    flip(folder / commit.tables[0].files[0].stored.path, random.Random(0), [])
    assert [damage(store, commit, level) is None for level in LEVELS] == [True, True, False, False]
    truncate(folder / commit.tables[1].files[0].stored.path, random.Random(0), [])
    assert [damage(store, commit, level) is None for level in LEVELS] == [True, False, False, False]


@pytest.mark.parametrize("pattern", ["dense/*/*", "commits/*"])
def test_with_every_commit_damaged_a_restore_refuses(pristine: Path, tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(pristine, folder)
    for path in folder.glob(pattern):
        flip(path, random.Random(1), [])
    with pytest.raises(RestoreFailed, match="verifies"):
        restored_world(folder, 2)


def test_a_damaged_format_file_does_not_make_good_commits_useless(pristine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(pristine, folder)
    flip(folder / "FORMAT.json", random.Random(2), [])
    assert holds(restored_world(folder, 2), 2)


def test_a_named_step_is_never_replaced_by_another(pristine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(pristine, folder)
    flip(next(folder.glob("dense/*/*")), random.Random(3), [])
    damaged_step, good_step = (1, 2) if damage_of(folder, 1) else (2, 1)
    with pytest.raises(NotFound):
        restored_world(folder, 1, resume="77")
    with pytest.raises(RestoreFailed, match=rf"the commit of step {damaged_step} under .* does not verify") as refused:
        restored_world(folder, 1, resume=str(damaged_step))
    assert "--resume never" not in refused.value.do, "other commits are whole: nobody is to start over"
    assert holds(restored_world(folder, 1, resume=str(good_step)), good_step)


def damage_of(folder: Path, step: int) -> bool:
    commits, _ = CommitLog(LocalStore(folder)).read_all()
    (commit,) = (commit for commit in commits.values() if commit.step == step)
    return damage(LocalStore(folder), commit, "hash") is not None
