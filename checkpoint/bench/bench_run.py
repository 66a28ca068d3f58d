"""The run of a checkpointer that nobody watches: what a benchmark times is not written to any log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class QuietRun:
    """A `RunRecord`."""

    job: str | None = None
    job_dir: Path | None = None

    @contextmanager
    def span(self, name: str, blocking: bool = True) -> Iterator[None]:
        yield

    def restored(self, step: int, cursor: int, **fields: Any) -> None:
        return

    def ckpt_begin(self, ckpt_id: str, step: int, cursor: int) -> None:
        return

    def committed(self, step: int, cursor: int, uri: str, **fields: Any) -> None:
        return

    def emit(self, ev: str, **fields: Any) -> None:
        return

    def at(self, point: str, step: int) -> None:
        return

    def through_faults(self, store: Any, tier: str) -> Any:
        return store
