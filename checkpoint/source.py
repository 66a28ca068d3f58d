"""The commit of another job that a job begins with (`ett launch --from`): named, found again, read and held."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.pins import leased
from ett.checkpoint.store import Store, open_store
from ett.checkpoint.target import job_store
from ett.errors import CorruptState, NotFound

VARIABLE = "ETT_FROM"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A commit. One of job_dir and uri says where; its uuid tells it from another that has its number later."""

    job: str  # that made it; "" outside `ett launch`
    job_dir: str = ""
    uri: str = ""
    seq: int
    step: int
    cursor: int
    ckpt_uuid: str

    @classmethod
    def of_environ(cls, environ: Mapping[str, str]) -> Source | None:
        text = environ.get(VARIABLE, "")
        return cls(**json.loads(text)) if text else None

    @property
    def where(self) -> str:
        return f"step {self.step} of {f'job {self.job}' if self.job else self.uri}"

    def lineage(self) -> dict[str, Any]:
        """Return what records say of it."""
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}

    def open(self) -> Store:
        return job_store(Path(self.job_dir)) if self.job_dir else open_store(self.uri)

    def read(self, store: Store) -> Commit:
        """Return the commit. Raises: NotFound: it is gone, or another has its number."""
        try:
            commit = CommitLog(store).read(self.seq)
        except CorruptState as err:
            raise self._gone(store) from err
        if commit.ckpt_uuid != self.ckpt_uuid:
            raise self._gone(store)
        return commit

    @contextmanager
    def held(self, store: Store, commit: Commit, job: str) -> Iterator[None]:
        """Keep retention from it. Raises: NotFound: it was faster."""
        try:
            with leased(store, commit, f"begin job {job}"):
                yield
        except CorruptState as err:
            raise self._gone(store) from err

    def _gone(self, store: Store) -> NotFound:
        return NotFound(
            f"commit {self.seq}, {self.where}, is no more under {store.uri}",
            expected="the commit that this job begins with, until it has saved one of its own",
            do="begin another job with a newer one, and hold it meanwhile: `ett checkpoint pin`",
        )
