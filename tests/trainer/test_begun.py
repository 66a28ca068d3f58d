"""What a rank begins before torch is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ett.hooks import around
from ett.tracker import Run, RunIdentity
from ett.trainer import begun


def test_a_torch_that_tells_of_no_compilation_does_not_end_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(around, "failures", [])
    monkeypatch.setattr(begun, "_import", lambda *_: None)
    monkeypatch.setattr(begun, "import_module", lambda _: SimpleNamespace(utils=SimpleNamespace()))
    begun._import_compiler(Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path)))
    assert len(around.failures) == 1
