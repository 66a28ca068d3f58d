"""`ett launch --from`: a recipe's job that begins with another's commit, and the plan of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from one_rank import trained

from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.source import VARIABLE
from ett.cli import cli
from ett.errors import ConfigError, Conflict, EttError, NotFound, UsageError
from ett.recipe import resolve
from ett.recovery.lineage import find_source
from ett.tracker import Run, RunIdentity

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"
SMALL = ("data.generate.rows=1500", "train.batch_size=128", "checkpoint.interval=3 steps", "eval.enabled=false")
RENAMED = (
    'sparse.tables.other.features=["C1"]',
    'checkpoint.migrate.rename={"embedding_bags.t_C1" = "embedding_bags.t_other"}',
)

pytestmark = pytest.mark.slow


def live(folder: Path, *overrides: str, attempt: int = 1) -> dict[str, Any]:
    """Run a life of a job of one rank in this process and return its result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(resolve(EXAMPLE, [*SMALL, *overrides]).sections))
    return trained(Run(RunIdentity(job=folder.name, attempt=attempt, job_dir=folder)), {})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with job "old", saved at step 4."""
    home = tmp_path_factory.mktemp("home")
    live(home / "jobs" / "old", "train.max_steps=4")
    return home


def begin(home: Path, monkeypatch: pytest.MonkeyPatch, source: str = "old") -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(find_source(source, home)))


@pytest.mark.parametrize("policy", ["full", "adaptive"])
def test_an_unchanged_model_trains_what_the_other_job_would_have(
    home: Path, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = live(tmp_path / "undisturbed", "train.max_steps=9", f"checkpoint.policy={policy}")
    begin(home, monkeypatch)
    for attempt, max_steps in ((1, 7), (2, 9)):
        found = live(tmp_path / "new", f"train.max_steps={max_steps}", f"checkpoint.policy={policy}", attempt=attempt)
    for name in ("step", "cursor", "loss_hex", "dense"):
        assert found[name] == undisturbed[name], name
    commit, _ = find_commit(LocalStore(tmp_path / "new" / "checkpoints"), None)
    assert commit.stats["from"]["job"] == "old"
    if policy == "full":
        assert found["digest"] == undisturbed["digest"]


def test_a_renamed_table_trains_on(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(home, monkeypatch, "old@4")
    old = json.loads((home / "jobs" / "old" / "result.json").read_text())["tables"]["embedding_bags.t_C1"]["rows"]
    found = live(tmp_path / "new", "train.max_steps=6", *RENAMED)
    assert found["step"] == 6
    assert found["tables"]["embedding_bags.t_other"]["rows"] >= old > 0


def test_new_data_is_refused_until_the_recipe_says_that_it_restarts(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(home, monkeypatch)
    with pytest.raises(AssertionError):
        live(tmp_path / "refused", "data.generate.seed=8", "train.max_steps=2")
    assert 'checkpoint.migrate.position = "restart"' in capsys.readouterr().err
    found = live(tmp_path / "new", "data.generate.seed=8", "train.max_steps=2", 'checkpoint.migrate.position="restart"')
    assert (found["step"], found["cursor"]) == (2, 256)


def dry_run(home: Path, *args: str) -> dict[str, Any]:
    done = CliRunner().invoke(
        cli, ["launch", "--dry-run", *args, str(EXAMPLE)], env={"ETT_HOME": str(home)}, catch_exceptions=False
    )
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def test_a_dry_run_shows_the_commit_and_what_becomes_of_each_table(home: Path) -> None:
    sets = [word for override in (*SMALL, *RENAMED) for word in ("--set", override)]
    plan = dry_run(home, "--from", "old@4", *sets)
    assert (plan["source"]["job"], plan["source"]["step"]) == ("old", 4)
    (renamed,) = [table for table in plan["migration"]["tables"] if table["change"] != "same"]
    assert (renamed["from"], renamed["to"]) == ("embedding_bags.t_C1", "embedding_bags.t_other")
    assert len(plan["migration"]["tables"]) == 26
    assert ["position", "step 4, sample 512"] in plan["migration"]["lines"]
    assert not (home / "jobs" / plan["job"]).exists()


def test_a_model_that_does_not_fit_is_refused_before_anything_starts(home: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        dry_run(home, "--from", "old", "--set", 'sparse.tables.other.features=["C1"]')
    assert raised.value.code == "F008"
    assert 'drop = ["embedding_bags.t_C1"], add = ["embedding_bags.t_other"]' in raised.value.do
    with pytest.raises(ConfigError, match=r"dense tensor top\.0\.weight is .* in the model"):
        dry_run(home, "--from", "old", "--set", "model.top_mlp=[32]")


def test_a_recipe_that_is_wrong_by_itself_is_not_compared_with_a_commit(home: Path) -> None:
    args = ["launch", "--from", "old", "--set", "data.format=sequence", str(EXAMPLE)]
    with pytest.raises(ConfigError, match="which begins with dense features") as raised:
        CliRunner().invoke(cli, args, env={"ETT_HOME": str(home)}, catch_exceptions=False)
    assert raised.value.code != "F008"
    assert [job.name for job in (home / "jobs").iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        (("--from", "old", "--job", "old"), Conflict, "there is a job old already"),
        (("--from", "old", "--resume", "3"), UsageError, "--from with --resume 3"),
        (("--from", "old@5"), NotFound, "no checkpoint of step 5"),
        (("--from", "nobody"), NotFound, "no job and no folder is named 'nobody'"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(
    args: tuple[str, ...], error: type[EttError], match: str, home: Path
) -> None:
    with pytest.raises(error, match=match):
        dry_run(home, *args)


def test_a_folder_of_checkpoints_is_a_source_as_well(home: Path) -> None:
    by_job, by_folder = (find_source(name, home) for name in ("old", str(home / "jobs" / "old" / "checkpoints")))
    assert by_folder["uri"] == str(home / "jobs" / "old" / "checkpoints")
    assert {**by_folder, "uri": "", "job_dir": by_job["job_dir"]} == by_job
