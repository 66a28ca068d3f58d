"""`ett publish job`: a job's recipe says where and what is published; a store that is down is asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import saved_world
from published_world import served_rows

from ett.checkpoint import published_job
from ett.checkpoint.progress import unwatched
from ett.checkpoint.publish_config import PublishConfig
from ett.checkpoint.published_job import PublishedJob
from ett.cli import run
from ett.errors import ConfigError, Unreachable


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "jobs" / "j"
    saved_world(folder / "checkpoints", 1, [1])
    (folder / "launch.json").write_text(json.dumps({"cwd": str(tmp_path)}))
    return folder


def recipe(job_dir: Path, **publish: Any) -> None:
    (job_dir / "recipe.json").write_text(json.dumps({"publish": publish}))


def test_a_job_is_published_as_its_recipe_says(
    job_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(job_dir, to="served", tables=["users"], delta=True)
    assert run(["publish", "job", "j", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["data"]
    assert (made["number"], made["step"], made["tables"]) == (1, 1, ["users"])
    assert set(served_rows(tmp_path / "served")) == {"users"}
    assert run(["publish", "status", "j", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["publications"][0]["key"] == made["key"]


def test_a_job_whose_recipe_says_nothing_is_told_what_to_type(
    job_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["publish", "job", "j"]) == 3
    assert "`ett publish j --to DIR|URL`" in capsys.readouterr().err
    recipe(job_dir, to="")
    assert run(["publish", "status", "j"]) == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"publish": "there"}'])
@pytest.mark.parametrize("command", ["job", "status"])
def test_a_damaged_recipe_is_said_to_be_damaged(
    job_dir: Path, capsys: pytest.CaptureFixture[str], command: str, text: str
) -> None:
    (job_dir / "recipe.json").write_text(text)
    assert run(["publish", command, "j"]) == 3
    assert "recipe.json is damaged" in capsys.readouterr().err


def test_a_place_that_will_not_do_is_that_of_the_recipe(
    job_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(job_dir, to="a_file/served")
    (tmp_path / "a_file").touch()
    assert run(["publish", "job", "j"]) == 3
    assert "choose another place (publish.to)" in capsys.readouterr().err


@pytest.mark.parametrize("failures", [2, 3])
def test_a_store_that_is_down_is_asked_again(job_dir: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    recipe(job_dir, to="served", attempts=3)
    left, waits = failures, list[float]()
    real = published_job.publish_newest_whole

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise Unreachable("the store does not answer")
        return real(*args, **kwargs)

    monkeypatch.setattr(published_job, "publish_newest_whole", sometimes)
    published = PublishedJob.of(job_dir)
    if failures == 3:
        with pytest.raises(Unreachable):
            published.publish(unwatched, waits.append)
    else:
        assert published.publish(unwatched, waits.append).publication.number == 1
    assert len(waits) == 2
    assert all(0 <= wait <= 20 for wait in waits)


@pytest.mark.parametrize("wrong", [{"quantise": 5}, {"attempts": 0}, {"max_age": -1}, {"to": "nosuchscheme://x"}])
def test_a_wrong_value_is_refused_before_the_launch(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="publish\\."):
        PublishConfig(**wrong)
