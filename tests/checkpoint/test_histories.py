"""Random histories of saves, deaths, damage, restarts and rollbacks: a restore is always what the history says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from checkpoint_world import FaultStore, Killed, Rank, ThreadRanks, holds, raise_first, restored_world, run_ranks

from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.local_store import LocalStore
from ett.errors import RestoreFailed

KEEP_LAST = 3


class History:
    """A job that lives many lives in one folder, and what it must find there.

    line: steps of the states that lead to the present, oldest first; the last KEEP_LAST of them are on disk.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.line: list[int] = []
        self.next_step = 1
        self.said: list[str] = []

    def say(self, what: str) -> None:
        self.said.append(what)

    def live(self) -> None:
        """Restart, then save some times; the last save may die at any of its operations."""
        found = self.restart(self.rng.choice(["auto", "auto", "auto", "step"]))
        num_saves = self.rng.randrange(4)
        dies = self.rng.random() < 0.6
        steps = [self.next_step + n for n in range(num_saves)]
        self.next_step += num_saves
        fail_at = self.rng.randrange(1, 90)
        self.say(f"saves {steps}, the last dies at {fail_at if dies else '-'}")
        world_size = self.rng.choice([1, 2])

        def work(ranks: ThreadRanks) -> None:
            rank = Rank(self.folder, ranks, keep_last=KEEP_LAST)
            rank.checkpointer.restore()
            for step in steps:
                rank.fill(step)
                if dies and step == steps[-1] and ranks.rank == 0:
                    store = rank.checkpointer._place.store
                    store.__class__ = FaultStore
                    FaultStore.__init__(store, self.folder, fail_at, Killed())  # type: ignore[arg-type]
                rank.checkpointer.save(step, step * 10)

        results = run_ranks(world_size, work)
        died = any(isinstance(result, Killed) for result in results)
        if not died:
            raise_first(results)
        self.line = [step for step in self.line if step <= found]
        for step in steps[:-1]:
            self.line = [*self.line, step][-KEEP_LAST:]
        if steps:
            last = self.newest_on_disk()
            assert last == steps[-1] or died, self.said
            self.line += [steps[-1]] if last == steps[-1] else []

    def restart(self, how: str) -> int:
        """Restore and compare with the oracle; return the step, 0 for a fresh start."""
        # A death in the middle of a collection leaves more than KEEP_LAST; what it had begun to delete may be gone.
        kept = [step for step in self.line[-KEEP_LAST:] if step in self.steps_on_disk() or step == self.line[-1]]
        step = self.rng.choice(kept) if kept and how == "step" else (kept[-1] if kept else 0)
        resume = str(step) if how == "step" and step else "auto"
        self.say(f"restart {resume}, expects {step}")
        world = restored_world(self.folder, self.rng.choice([1, 2, 3]), resume=resume, keep_last=KEEP_LAST)
        position = world[0][1]
        assert (position.step if position else 0) == step, self.said
        if step:
            assert holds(world, step), self.said
        self.line = [earlier for earlier in self.line if earlier <= step]
        return step

    def damage(self) -> None:
        """Flip a bit of the newest state; the state before it becomes the newest, if there is one."""
        known, _ = CommitLog(LocalStore(self.folder)).read_all()
        states = [commit for commit in line_of_history(known) if not commit.is_fresh]
        if not states:
            return
        path = self.folder / self.rng.choice(states[0].stored_files()).path
        data = bytearray(path.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(data)
        self.say(f"damage to {states[0].step}")
        assert self.line[-1] == states[0].step
        self.line.pop()
        if len({commit.ckpt_uuid for commit in states}) == 1:
            with pytest.raises(RestoreFailed):
                restored_world(self.folder, 1)
            # A person decides to start over, which nothing does by itself.
            restored_world(self.folder, 1, resume="never")
            self.line = []

    def steps_on_disk(self) -> set[int]:
        known, _ = CommitLog(LocalStore(self.folder)).read_all()
        return {commit.step for commit in known.values()}

    def newest_on_disk(self) -> int:
        known, _ = CommitLog(LocalStore(self.folder)).read_all()
        return known[max(known)].step


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow if n < 4 else pytest.mark.campaign) for n in range(12)]
)
def test_every_restart_finds_the_newest_good_state(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(12):
        history.live()
        if history.rng.random() < 0.3:
            history.damage()
    history.restart("auto")
