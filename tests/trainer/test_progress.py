"""The terminal hears where a job starts from, a line every few seconds, and its result."""

from __future__ import annotations

from pathlib import Path

from ett.checkpoint import RestoredPosition
from ett.trainer.progress import ProgressLines, described


class FakeClock:
    now_s = 0.0

    def wall_ns(self) -> int:
        return self.mono_ns()

    def mono_ns(self) -> int:
        return int(self.now_s * 1e9)


def test_training_says_a_line_every_five_seconds_with_the_rate_since_the_last() -> None:
    said: list[str] = []
    clock = FakeClock()
    lines = ProgressLines(clock=clock, say=said.append)
    lines.begin(None)
    for step in range(1, 13):
        clock.now_s = float(step)
        lines.step(step, step * 100, 0.5)
    assert said[0] == "starts fresh"
    assert [line.split(" ·")[0] for line in said[1:]] == ["step 5", "step 10"]
    assert said[2].endswith("1,000 samples · loss 0.5000 · 100 samples/s")


def test_a_restored_job_says_from_where_and_that_it_fell_back() -> None:
    said: list[str] = []
    lines = ProgressLines(clock=FakeClock(), say=said.append)
    lines.begin(RestoredPosition(step=160, cursor=9, seq=5))
    lines.begin(RestoredPosition(step=120, cursor=9, seq=4, fallback_from=5))
    assert said == [
        "resumes from step 160 (commit 5)",
        "resumes from step 120 (commit 4; the newest, 5, did not verify)",
    ]


def test_the_result_is_said_with_its_files() -> None:
    said: list[str] = []
    result = {"step": 1, "cursor": 2, "loss": 0.25, "auc": None, "normalized_entropy": None, "held_out_rows": 0}
    ProgressLines(say=said.append).finished(result, (Path("a"), Path("b")))
    assert said == ["finished 1 step over 2 samples, last loss 0.2500, no AUC on 0 held-out rows", "written: a, b"]
    assert described({"step": 2, "cursor": 3, "loss": None}) == "2 steps over 3 samples, no loss"
