"""What a checkpoint tells the run that it belongs to; `ett.init()` returns such an object."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Protocol


class RunRecord(Protocol):
    @property
    def job(self) -> str | None: ...

    @property
    def job_dir(self) -> PathLike[str] | str | None: ...

    def span(self, name: str, blocking: bool = True) -> AbstractContextManager[Any]: ...

    def restored(
        self,
        step: int,
        cursor: int,
        *,
        ckpt_id: str | None = None,
        scope: str = "full",
        fallback_from: str | None = None,
        verified: bool = True,
        read_bytes: int | None = None,
        kept_bytes: int | None = None,
        not_kept: Sequence[str] | None = None,
    ) -> None: ...

    def ckpt_begin(self, ckpt_id: str, step: int, cursor: int) -> None: ...

    def committed(
        self,
        step: int,
        cursor: int,
        uri: str,
        *,
        ckpt_id: str | None = None,
        num_bytes: int = 0,
        digest: str | None = None,
        tier: str = "local",
    ) -> None: ...

    def emit(self, ev: str, **fields: Any) -> None: ...

    def at(self, point: str, step: int) -> None: ...

    def through_faults(self, store: Any, tier: str) -> Any: ...
