"""The wheel holds what the folders hold, and a user's own trainer.py or checkpoint.py never shadows ours."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("checkpoint", "recovery", "compile_cache", "trainer", "dashboards", "alerts")
SHIPPED = {".py", ".typed", ".json", ".toml", ".cpp", ".hpp"}

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
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(tree)],
        check=True,
    )
    (built,) = out.glob("ett-*.whl")
    return built


def test_the_wheel_holds_exactly_the_files_of_the_folders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.startswith("ett/") and not n.endswith(".so")}
    expected = {
        f"ett/{path.relative_to(ROOT)}" if folder != "ett" else str(path.relative_to(ROOT))
        for folder in ("ett", *FOLDERS)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in SHIPPED and "__pycache__" not in path.parts
        if folder != "ett" or not set(path.relative_to(ROOT / "ett").parts) & set(FOLDERS)
    }
    assert packed == expected


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
