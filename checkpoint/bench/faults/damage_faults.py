"""Damage to files of the newest commit, after it was made and while it is being made."""

from __future__ import annotations

import random
from pathlib import Path

from ett.checkpoint.bench.faults.damage import DAMAGES
from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.faulty_store import FaultyStore, role_of
from ett.checkpoint.bench.faults.verdict import Expected, Verdict, not_injected, restored_verdict
from ett.checkpoint.bench.faults.worlds import World
from ett.checkpoint.commit import commit_name
from ett.checkpoint.commit_log import FORMAT_NAME, CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import EttError


class DamageFaults:
    """A file of a finished folder is damaged; points are what the file is."""

    name = "damage"

    def __init__(self, worlds: list[World]) -> None:
        self._worlds = worlds
        self._files = [_files_by_role(world) for world in worlds]
        self._shared = [_files_of_older_commits(world) for world in worlds]

    def cells(self) -> list[Cell]:
        roles = sorted({role for files in self._files for role in files})
        return [Cell(kind, role) for role in roles for kind in DAMAGES]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        number = chance.choice([n for n, files in enumerate(self._files) if cell.point in files])
        world = self._worlds[number]
        folder = world.clone(scratch / "folder")
        every = sorted(path for path in folder.rglob("*") if path.is_file())
        name = chance.choice(self._files[number][cell.point])
        DAMAGES[cell.kind](folder / name, chance, every)
        expected = _after_damage(cell, world, is_shared=name in self._shared[number])
        return restored_verdict(world.oracle, LocalStore(folder), expected)


class RotFaults:
    """A file of a save is damaged between its creation and the commit, or just after that."""

    name = "rot"
    _INSTANTS = ("4 fragment create", "5 record create", "6 record list")

    def __init__(self, worlds: list[World]) -> None:
        self._worlds = worlds

    def cells(self) -> list[Cell]:
        kinds = ("flip", "zeros", "truncate", "append", "lose")
        return [
            Cell(kind, f"{role}, before {instant}")
            for instant in self._INSTANTS
            for role in ("segment", "dense", "fragment")
            for kind in kinds
            if (role, instant) != ("fragment", "4 fragment create")
        ]

    def inject(self, cell: Cell, chance: random.Random, scratch: Path) -> Verdict:
        world = chance.choice(self._worlds)
        folder = world.clone(scratch / "folder")
        before = {path for path in folder.rglob("*") if path.is_file()}
        role, _, instant = cell.point.partition(", before ")
        store = FaultyStore(folder)
        damaged: list[Path] = []

        def damage(point: str, occurrence: int) -> None:
            if point != instant or occurrence or damaged:
                return
            new = sorted(path for path in folder.rglob("*") if path.is_file() and path not in before)
            mine = [path for path in new if role_of(str(path.relative_to(folder))) == role]
            damaged.append(chance.choice(mine))
            DAMAGES[cell.kind](damaged[0], chance, new)

        store.hook = damage
        job = world.job(store)
        store.step = "1"
        job.train_to(world.last + 1)
        try:
            job.save()
            is_saved = True
        except EttError:
            is_saved = False
        if not damaged:
            return not_injected()
        expected = Expected(last=job.step, previous=world.last, is_said=is_saved)
        return restored_verdict(world.oracle, LocalStore(folder), expected)


def _files_by_role(world: World) -> dict[str, list[str]]:
    """Return the names of the files that the newest commit rests on, by what they are."""
    log = CommitLog(LocalStore(world.folder))
    commit = log.read(max(log.seqs()))
    roles = {"format": [FORMAT_NAME], "fragment": [file.path for file in commit.fragments]}
    roles["record" if commit.type != "epoch_open" else "opening record"] = [commit_name(commit.seq)]
    assert commit.dense is not None
    roles["dense"] = [file.stored.path for file in commit.dense.files]
    for table in commit.tables:
        for file in table.files:
            roles.setdefault(f"{file.identity.kind} segment", []).append(file.stored.path)
    return roles


def _files_of_older_commits(world: World) -> set[str]:
    known, _ = CommitLog(LocalStore(world.folder)).read_all()
    states = {commit.ckpt_uuid: commit for commit in known.values() if commit.ckpt_uuid != known[max(known)].ckpt_uuid}
    return {file.path for commit in states.values() for file in commit.stored_files()}


def _after_damage(cell: Cell, world: World, *, is_shared: bool) -> Expected:
    """Args: is_shared: the commit before rests on the file, too, as in a chain."""
    # Nobody can miss a record that is gone: the folder is that of a process that died before its commit.
    is_gone = cell.point == "record" and cell.kind in ("lose", "rename")
    hits_another = cell.kind in ("swap", "rename")
    return Expected(
        last=world.last,
        previous=world.last - 1,
        may_refuse=hits_another or is_shared,
        is_said=not is_gone,
    )
