"""The example of a start-up graph in a script of one's own, started as a user starts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from launched_job import LaunchedJob

from ett.cli import cli

pytestmark = pytest.mark.process


def test_the_example_restarts_through_its_graph_and_the_report_shows_it(tmp_path: Path) -> None:
    job = LaunchedJob(tmp_path)
    example = str(Path(__file__).parents[2] / "examples" / "startup.py")
    assert job.run("--max-restarts", "1", "--chaos", "kill:rank=0,step=120", example) == 0, job.err
    assert "after 200 steps" in job.out
    args = ["report", "--events", str(job.job_dir), "--startup", "--json"]
    starts = json.loads(CliRunner().invoke(cli, args, catch_exceptions=False).output)["data"]["starts"]
    assert [start["attempt"] for start in starts] == [1, 2]
    for start in starts:
        nodes = {node["node"]: node for node in start["nodes"]}
        assert set(nodes["restore"]["waited_for"]) >= {"model_build"}
        assert nodes["data_warmup"]["main_thread"] is False
        assert nodes["model_build"]["begin_ns"] >= nodes["imports"]["begin_ns"] + nodes["imports"]["ns"]
        assert start["critical_path"][-1] == "restore"
