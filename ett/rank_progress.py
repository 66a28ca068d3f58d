"""Which rank goes on and which does not, read from the ranks' event logs as they grow; nothing is asked of a rank."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from ett.hang import RankProgress
from ett.ring_tail import waiting_tails

# A supervisor that was stopped, or a host that was suspended, must not count the time that nobody lived through.
LONGEST_TICK_S = 5.0
_KIND = re.compile(rb'"ev":"(\w+)"')
_GEN = re.compile(rb'"gen":(\d+)')
_STEP = re.compile(rb'"step":(\d+)')
_PROGRESS = frozenset({b"proc_start", b"restore", b"ckpt_begin", b"ckpt_commit", b"train_end"})
_RANK_OF_FILE = re.compile(r"r(\d+)-")


class ProgressLog:
    """Follows `events/<attempt>/` of a running attempt.

    Args:
        folder: of the attempt's event log; need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now_s = 0.0
        self._last_poll_s: float | None = None
        self._offsets: dict[Path, int] = {}
        self._ranks: dict[int, _Rank] = {}

    def poll(self, now_s: float) -> None:
        """Read what was written since the last call. `now_s` is a monotonic clock of the caller."""
        if self._last_poll_s is not None:
            self._now_s += min(now_s - self._last_poll_s, LONGEST_TICK_S)
        self._last_poll_s = now_s
        for path in sorted(self._folder.glob("r*-*.jsonl")):
            found = _RANK_OF_FILE.match(path.name)
            if found is not None:
                rank = self._ranks.setdefault(int(found[1]), _Rank(self._now_s))
                for line in self._new_lines(path):
                    rank.read(line, self._now_s)
        self._read_rings()

    def progress(self, alive: Iterable[int]) -> list[RankProgress]:
        """Return how the ranks of `alive` go on that recorded anything, by rank."""
        return [self._ranks[rank].progress(rank, self._now_s) for rank in sorted(alive) if rank in self._ranks]

    def _read_rings(self) -> None:
        """Read what no file has yet: a rank whose records wait for a stuck disk goes on all the same."""
        for name, tail in waiting_tails(self._folder.parent).items():
            attempt, _, file = name.partition("/")
            found = _RANK_OF_FILE.match(file)
            path = self._folder / file
            begin = self._offsets.get(path, 0) - tail.offset
            if attempt == self._folder.name and found is not None and begin >= 0 and path in self._offsets:
                rank = self._ranks.setdefault(int(found[1]), _Rank(self._now_s))
                whole = tail.lines.rfind(b"\n") + 1
                for line in tail.lines[begin:whole].splitlines():
                    rank.read(line, self._now_s)
                self._offsets[path] = max(self._offsets.get(path, 0), tail.offset + whole)

    def _new_lines(self, path: Path) -> list[bytes]:
        """Return the whole lines that were not there before; a line that is still being written waits."""
        begin = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read()
        except OSError:
            return []
        whole = text.rfind(b"\n") + 1
        self._offsets[path] = begin + whole
        return text[:whole].splitlines()


class _Rank:
    def __init__(self, now_s: float) -> None:
        self.last_s = self.last_step_s = now_s
        self.gen = self.num_steps = 0
        self.last_step: int | None = None
        self.spans: dict[object, str] = {}  # open blocking ones by id, in the order of their begin
        self.has_ended_training = self.is_in_step = False
        self.longest_pause_s = 0.0

    def read(self, line: bytes, now_s: float) -> None:
        found = _KIND.search(line)
        kind = found[1] if found else b""
        gen = int(number[1]) if (number := _GEN.search(line)) else 0
        if gen > self.gen:  # a new process, or one that trains anew
            self.__init__(now_s)  # type: ignore[misc]
            self.gen = gen
        if gen < self.gen:
            return
        if kind in (b"step", b"step_begin"):
            self._read_step(kind, line, now_s)
        elif kind in (b"span_begin", b"span_end"):
            self._read_span(kind, line, now_s)
        elif kind in _PROGRESS:
            self.has_ended_training = self.has_ended_training or kind == b"train_end"
            self._advance(now_s)

    def progress(self, rank: int, now_s: float) -> RankProgress:
        return RankProgress(
            rank=rank,
            idle_s=now_s - self.last_s,
            step_idle_s=now_s - self.last_step_s,
            num_steps=self.num_steps,
            last_step=self.last_step,
            spans=tuple(self.spans.values()),
            has_ended_training=self.has_ended_training,
            is_in_step=self.is_in_step,
            longest_pause_s=self.longest_pause_s,
        )

    def _read_step(self, kind: bytes, line: bytes, now_s: float) -> None:
        number = _STEP.search(line)
        self.is_in_step = kind == b"step_begin"
        if kind == b"step":
            self.num_steps += 1
            self.last_step_s = now_s
            self.last_step = int(number[1]) if number else self.last_step
        self._advance(now_s)

    def _read_span(self, kind: bytes, line: bytes, now_s: float) -> None:
        try:
            fields = json.loads(line.partition(b"\t")[0])
            span, name, is_blocking = fields["id"], str(fields.get("name", "")), fields.get("blocking", True)
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # what cannot be read is no progress
        if kind == b"span_begin" and is_blocking and not isinstance(span, list | dict):
            self.spans[span] = name
        elif kind == b"span_end" and is_blocking:
            self.spans.pop(span, None)
        if is_blocking:  # one beside training tells nothing of the training thread
            self._advance(now_s)

    def _advance(self, now_s: float) -> None:
        if self.num_steps > 1 and not self.spans:
            self.longest_pause_s = max(self.longest_pause_s, now_s - self.last_s)
        self.last_s = now_s
