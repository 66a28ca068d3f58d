"""What a job says on its terminal: where it starts from, a line every few seconds, and its result; on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ett.checkpoint import RestoredPosition
from ett.clock import Clock, SystemClock
from ett.trainer.evaluation import HeldOutScore

INTERVAL_S = 5.0  # between two lines of training


class ProgressLines:
    """Prints at most one line of training every INTERVAL_S; a step without one costs a look at the clock."""

    def __init__(self, *, clock: Clock | None = None, say: Callable[[str], None] | None = None) -> None:
        self._clock = clock or SystemClock()
        self._say = say or _say
        self._cursor, self._last_ns = 0, 0

    def begin(self, restored: RestoredPosition | None) -> None:
        """Say where training starts from."""
        self._last_ns = self._clock.mono_ns()
        if restored is None:
            self._say("starts fresh")
            return
        self._cursor = restored.cursor
        if restored.source:
            self._say(f"begins with {restored.source} (commit {restored.seq}), at step {restored.step:,} of its own")
            return
        damaged = restored.fallback_from
        instead = "" if damaged is None else f"; the newest, {damaged}, did not verify"
        self._say(f"resumes from step {restored.step:,} (commit {restored.seq}{instead})")

    def step(self, step: int, cursor: int, loss: float) -> None:
        """Take note of a completed step; samples/s are those since the last line.

        Args:
            cursor: samples of all ranks so far.
            loss: the mean over the global batch.
        """
        now_ns = self._clock.mono_ns()
        elapsed_s = (now_ns - self._last_ns) / 1e9
        if elapsed_s < INTERVAL_S:
            return
        rate = (cursor - self._cursor) / elapsed_s
        self._say(f"step {step:,} · {cursor:,} samples · loss {loss:.4f} · {rate:,.0f} samples/s")
        self._cursor, self._last_ns = cursor, now_ns

    def scored(self, step: int, score: HeldOutScore) -> None:
        self._say(f"step {step:,} · {_score_words(score.as_json())}")

    def stopped(self, step: int, seq: int) -> None:
        self._say(f"stopped at step {step:,}, saved as commit {seq}")

    def finished(self, result: Mapping[str, Any], files: tuple[Path, ...]) -> None:
        """Say the result of a job that ran to its end, and where it stands."""
        self._say(f"finished {described(result)}")
        self._say(f"written: {', '.join(map(str, files))}")


def described(result: Mapping[str, Any]) -> str:
    """Return a result.json in words."""
    parts = [f"{counted(result['step'], 'step')} over {counted(result['cursor'], 'sample')}"]
    parts.append("no loss" if result["loss"] is None else f"last loss {result['loss']:.4f}")
    if "auc" in result:
        parts.append(_score_words(result))
    return ", ".join(parts)


def _score_words(score: Mapping[str, Any]) -> str:
    auc, entropy = score["auc"], score["normalized_entropy"]
    words = "no AUC" if auc is None else f"AUC {auc:.4f} (normalised entropy {entropy:.4f})"
    return f"{words} on {counted(score['held_out_rows'], 'held-out row')}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _say(text: str) -> None:
    print(text, flush=True)  # into a file that the supervisor passes on line by line
