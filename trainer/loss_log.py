"""metrics.jsonl of a job: a line for each completed step and each score, over all attempts; written by rank 0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ett.trainer.evaluation import HeldOutScore


class LossLog:
    """After a restore the lines of later steps are cut off, so every step stands there once, in order."""

    def __init__(self, path: Path, *, restored_step: int) -> None:
        """Open the file for appending after `restored_step` (0: a fresh start)."""
        kept = [line for line in _complete_lines(path) if json.loads(line)["step"] <= restored_step]
        replacement = path.with_suffix(".tmp")
        replacement.write_text("".join(kept))
        replacement.replace(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, step: int, loss: float, factor: float) -> None:
        """Add one step: `loss` is the mean over the global batch, `factor` that of the learning rates."""
        self._write({"step": step, "loss": loss, "loss_hex": loss.hex(), "lr_factor": factor})

    def append_score(self, step: int, score: HeldOutScore) -> None:
        """Add what the held-out rows said after `step`; null where they have no score."""
        self._write({"step": step} | score.as_json())

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._fd, (json.dumps(line, allow_nan=False) + "\n").encode())


def read_losses(path: Path) -> dict[int, float]:
    """Return every step's loss, by step, to the bit."""
    return losses_of(_complete_lines(path))


def losses_of(lines: Iterable[str]) -> dict[int, float]:
    """As `read_losses`, of lines that were read."""
    found = [json.loads(line) for line in lines]
    return {line["step"]: float.fromhex(line["loss_hex"]) for line in found if "loss_hex" in line}


def _complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
