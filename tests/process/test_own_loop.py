"""The README's loop of one's own: killed and restored it ends with the weights of the run that nobody touched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launched_job import LaunchedJob

ROOT = Path(__file__).parents[2]
LOOP = str(ROOT / "examples" / "own_loop.py")

pytestmark = pytest.mark.process


def result(text: str) -> str:
    (line,) = re.findall(r"step 60, loss of rank 0 .*, weights .*", text)
    return line


def test_a_killed_loop_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
    plain, killed = LaunchedJob(tmp_path / "plain"), LaunchedJob(tmp_path / "killed")
    assert plain.run("--nproc", "2", LOOP) == 0, plain.err
    assert killed.run("--nproc", "2", "--max-restarts", "1", "--chaos", "kill:rank=0,step=37", LOOP) == 0, killed.err
    assert [end["reason"] for end in killed.ends()] == ["failed", "completed"]
    assert result(killed.out) == result(plain.out)


def test_the_readme_shows_calls_that_the_example_makes() -> None:
    readme = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    example = Path(LOOP).read_text()
    for call in set(re.findall(r"\b(?:run|checkpointer|ett)\.\w+\(", block)):
        assert call in example, call
    compile(block, "README.md", "exec")
