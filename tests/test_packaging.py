"""The wheel holds what the folders hold, and a user's own trainer.py or checkpoint.py never shadows ours."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Set
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("checkpoint", "recovery", "compile_cache", "trainer", "dashboards", "alerts")
SHIPPED = {".py", ".typed", ".json", ".toml", ".cpp", ".hpp"}
COMPILED = "ett/trainer/data/_nulls.cpp"  # the shortest

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    tree = tmp_path_factory.mktemp("tree") / "ett source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, tracked.split("\0")):
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_file():
            target.write_bytes(source.read_bytes())
    _lay_ready(tree)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(tree)],
        check=True,
    )
    (built,) = out.glob("ett-*.whl")
    return built


def _lay_ready(tree: Path) -> None:
    """Lay the extensions that are built here where a build finds them newer than their sources; it compiles one.

    All 14 would take minutes of a processor, of the same compiler with the same options as those of `make install`.
    """
    lib = tree / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for name, source in _files_of_the_folders({".cpp"}).items():
        built = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        if built.exists() and name != COMPILED:
            target = (lib / name).with_name(built.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(built.read_bytes())


def _files_of_the_folders(suffixes: Set[str]) -> dict[str, Path]:
    """Return them by their names in a wheel."""
    return {
        f"ett/{path.relative_to(ROOT)}" if folder != "ett" else str(path.relative_to(ROOT)): path
        for folder in ("ett", *FOLDERS)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts
        if folder != "ett" or not set(path.relative_to(ROOT / "ett").parts) & set(FOLDERS)
    }


def test_the_wheel_holds_exactly_the_files_of_the_folders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.startswith("ett/") and not n.endswith(".so")}
    assert packed == _files_of_the_folders(SHIPPED).keys()


def test_the_wheel_holds_an_extension_for_each_native_source(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")}
    assert packed == {name.removesuffix(".cpp") for name in _files_of_the_folders({".cpp"})}


def test_the_wheel_holds_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ett"}


def test_the_installed_wheel_is_not_shadowed_by_a_users_files(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in ("trainer", "checkpoint", "recovery"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    probe = (
        "import sys; sys.path.insert(1, sys.argv[1])\n"
        "import trainer, checkpoint, recovery, ett.trainer, ett.checkpoint, ett.recovery, ett\n"
        "assert trainer.MINE and checkpoint.MINE and recovery.MINE\n"
        "assert ett.__file__.startswith(sys.argv[1]), ett.__file__\n"
        "assert ett.trainer is not trainer and not hasattr(ett.checkpoint, 'MINE')\n"
        "print(ett.trainer.__name__)"
    )
    script = tmp_path / "mine.py"
    script.write_text(probe)
    done = subprocess.run(
        [sys.executable, str(script), str(site)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ett.trainer\n"), done.stderr
