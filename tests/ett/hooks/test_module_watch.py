from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from ett.hooks.module_watch import ModuleWatch


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleWatch]:
    monkeypatch.syspath_prepend(str(tmp_path))
    watch = ModuleWatch()
    watch.install()
    yield watch
    sys.meta_path.remove(watch)
    for name in ("watched", "unwatched", "package", "package.part"):
        sys.modules.pop(name, None)


def test_the_callback_gets_the_whole_module(watch: ModuleWatch, tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("import sys\nVALUE = 1\n")
    seen: list[int] = []
    watch.when_imported("watched", lambda module: seen.append(module.VALUE))
    assert seen == []
    import watched  # type: ignore[import-not-found]

    assert seen == [1]
    assert "exec_module" not in vars(watched.__spec__.loader)


def test_a_module_that_is_there_already_is_told_at_once(watch: ModuleWatch) -> None:
    seen: list[str] = []
    watch.when_imported("json", lambda module: seen.append(module.__name__))
    assert seen == ["json"]


def test_a_module_that_fails_is_not_told_and_fails_without_a_line_of_ours(watch: ModuleWatch, tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("raise OSError('no')\n")
    seen: list[object] = []
    watch.when_imported("watched", seen.append)
    with pytest.raises(OSError) as raised:
        import watched  # noqa: F401
    files = [Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert files == ["test_module_watch.py", "watched.py"]
    assert seen == []


def test_a_callback_that_fails_does_not_hurt_the_import(watch: ModuleWatch, tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("VALUE = 1\n")
    seen: list[object] = []
    watch.when_imported("watched", lambda module: 1 / 0)
    watch.when_imported("watched", seen.append)
    import watched

    assert seen == [watched]


def test_a_part_of_a_package_is_told_by_its_own_name(watch: ModuleWatch, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("VALUE = 2\n")
    seen: list[int] = []
    watch.when_imported("package.part", lambda module: seen.append(module.VALUE))
    import package.part  # type: ignore[import-not-found]  # noqa: F401

    assert seen == [2]
