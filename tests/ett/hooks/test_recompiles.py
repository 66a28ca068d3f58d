"""What torch compiles again after the first step is counted, and the guard that failed is named; with torch itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo

from ett.event_reader import read_folder
from ett.hooks import around, recompiles
from ett.hooks.recompiles import RecompileWatch, guard_of, place_of
from ett.tracker import Run, RunIdentity


class Watched:
    """A run that torch._dynamo reports to, and a function that it compiles."""

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir
        self.run = Run(RunIdentity(job="j", attempt=1, job_dir=job_dir))

        def doubled(x: Any, times: int = 2) -> Any:
            return x * times

        self.line = doubled.__code__.co_firstlineno
        self.call = torch.compile(doubled, backend="eager")

    def step(self) -> None:
        with self.run.step():
            pass

    def records(self) -> list[dict[str, Any]]:
        return [dict(r.data) for r in read_folder(self.job_dir).records if r.ev == "recompile"]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(around, "failures", [])
    monkeypatch.setattr(torch._dynamo.utils, recompiles.REPORTER, torch._dynamo.utils.record_compilation_metrics)
    monkeypatch.setattr(torch._dynamo.utils, "_metrics_context_tls", threading.local())  # takes the reporter again
    handler = torch._dynamo.callback.callback_handler
    monkeypatch.setattr(handler, "clear", handler.clear)
    yield Watched(tmp_path)
    torch._dynamo.reset()
    handler.start_callbacks.clear()
    handler.end_callbacks.clear()


def test_a_recompilation_after_the_first_step_names_its_guard_and_where_its_code_is(watched: Watched) -> None:
    RecompileWatch(watched.run).install(torch._dynamo)
    watched.call(torch.ones(3))
    watched.step()
    watched.call(torch.ones(5))
    (record,) = watched.records()
    assert record["guard"] == "tensor 'x' size mismatch at index 0. expected 3, actual 5"
    assert record["code"] == f"doubled ({__file__}:{watched.line})"
    assert 0 < record["seconds"] < 600
    assert around.failures == []


def test_what_is_compiled_before_the_first_step_is_none(watched: Watched) -> None:
    RecompileWatch(watched.run).install(torch._dynamo)
    watched.call(torch.ones(3))
    watched.call(torch.ones(5))
    watched.step()
    watched.call(torch.ones(7))  # of any size by now
    assert watched.records() == []


def test_what_is_compiled_for_the_first_time_is_none_however_late(watched: Watched) -> None:
    RecompileWatch(watched.run).install(torch._dynamo)
    watched.step()
    watched.call(torch.ones(3))
    assert watched.records() == []


def test_each_guard_that_fails_is_a_record_of_its_own(watched: Watched) -> None:
    RecompileWatch(watched.run).install(torch._dynamo)
    watched.call(torch.ones(3))
    watched.step()
    watched.call(torch.ones(3), 4)
    watched.call(torch.ones(3, dtype=torch.float64), 4)
    first, second = watched.records()
    assert first["guard"] == "times == 2"
    assert "dtype mismatch" in second["guard"]


def test_a_torch_that_reports_no_measures_is_counted_without_a_guard(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = SimpleNamespace(utils=SimpleNamespace(), callback=torch._dynamo.callback)
    RecompileWatch(watched.run).install(lacking)
    for _ in range(2):
        torch._dynamo.reset()  # forgets callbacks
    watched.call(torch.ones(3))
    watched.step()
    watched.call(torch.ones(5))
    (record,) = watched.records()
    assert set(record) == {"seconds"}
    assert around.failures == []


def test_a_report_of_another_shape_is_dropped_and_counted(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    other = SimpleNamespace(utils=SimpleNamespace(record_compilation_metrics=lambda *args: seen.append(args)))
    RecompileWatch(watched.run).install(other)
    other.utils.record_compilation_metrics("something else")
    assert seen == [("something else",)]
    assert len(around.failures) == 1
    assert watched.records() == []


def test_a_layer_of_torch_is_named_by_the_line_that_calls_it(watched: Watched) -> None:
    RecompileWatch(watched.run).install(torch._dynamo)
    layer = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    layer(torch.ones(3, 2))
    watched.step()
    layer(torch.ones(5, 2))
    (record,) = watched.records()
    assert record["code"].startswith(f"test_a_layer_of_torch_is_named_by_the_line_that_calls_it ({__file__}:")


def test_a_program_in_a_folder_of_torchs_name_is_none_of_torchs(tmp_path: Path) -> None:
    wrapper = {"co_name": "inner", "co_filename": torch._dynamo.external_utils.__file__, "co_firstlineno": 3}
    scope: dict[str, Any] = {"place_of": place_of, "measured": wrapper}
    file = tmp_path / "torch" / "program.py"
    exec(compile("def step():\n    return place_of(measured)\n", str(file), "exec"), scope)
    assert scope["step"]() == f"step ({file}:2)"


def test_a_watch_that_is_off_writes_nothing(watched: Watched) -> None:
    RecompileWatch(watched.run, lambda: False).install(torch._dynamo)
    watched.call(torch.ones(3))
    watched.step()
    watched.call(torch.ones(5))
    assert watched.records() == []


@pytest.mark.parametrize(
    ("reason", "guard"),
    [
        ("0/1: 2 <= x.size()[0]  # return f(x)  # a.py:3 in f (user code shown is …)", "2 <= x.size()[0]"),
        ("1/2: n == 1            # return y\nUser stack trace:\n  File", "n == 1"),
        ("Unable to find recompilation reasons", "Unable to find recompilation reasons"),
        ("L['self'].mode: 'a' == 'b'", "L['self'].mode: 'a' == 'b'"),
        ("0/0: " + "x" * 5_000, "x" * recompiles.MAX_TEXT),
    ],
)
def test_a_guard_is_short(reason: str, guard: str) -> None:
    assert guard_of(reason) == guard


def test_a_place_keeps_the_end_of_a_long_path() -> None:
    long = place_of({"co_name": "forward", "co_filename": "/a" * 900 + "/model.py", "co_firstlineno": 12})
    assert long.endswith("/model.py:12)")
    assert len(long) < 400
    assert place_of({}) == "? (?:?)"
