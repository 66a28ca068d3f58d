"""The example's loop of one's own, in this process: told to stop it saves where it is, and goes on to the same bits."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest

from ett.tracker import Run

STOP_AFTER = 17  # steps: not one at which a save is due


@pytest.fixture
def loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_loop", Path(__file__).parents[2] / "examples" / "own_loop.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_loop_that_is_told_to_stop_goes_on_where_it_was(
    loop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "NUM_STEPS", 25)
    for name in ("plain", "stopped"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    loop.main()
    plain = capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "stopped")
    with monkeypatch.context() as told:
        asked = itertools.count(1)
        told.setattr(Run, "stop_requested", property(lambda run: next(asked) >= STOP_AFTER))
        with pytest.raises(SystemExit) as end:
            loop.main()
    assert end.value.code == 143
    assert capsys.readouterr().out.startswith(f"step {STOP_AFTER},")
    loop.main()
    assert capsys.readouterr().out == plain
