"""`--startup` of `ett report` and `ett timeline`: what it does not go with is refused, not ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ett.cli import cli
from ett.errors import NotFound, UsageError

EXAMPLE = Path(__file__).parents[2] / "docs" / "startup-example"
VERBS = (("report",), ("timeline", "--svg", "start.svg"))


@pytest.mark.parametrize(
    ("args", "given"),
    [
        (("report", "--startup", "--fail-under", "0.9"), "--fail-under"),
        (("report", "--startup", "--md"), "--md"),
        (("timeline", "--startup", "--svg", "start.svg", "--otlp", "http://127.0.0.1:1"), "--otlp"),
        (("timeline", "--startup", "--svg", "start.svg", "--as-of", "1"), "--as-of"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(args: tuple[str, ...], given: str) -> None:
    with pytest.raises(UsageError, match=f"{given} with --startup"):
        CliRunner().invoke(cli, [*args, "--events", str(EXAMPLE)], catch_exceptions=False)


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_of_which_no_rank_has_begun_is_said_to_be_so(verb: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with pytest.raises(NotFound, match=r"no rank of .* has begun to start"):
        CliRunner().invoke(cli, [*verb, "--startup", "--events", str(tmp_path)], catch_exceptions=False)


def test_several_jobs_have_no_one_start() -> None:
    with pytest.raises(UsageError, match="several jobs with --startup"):
        CliRunner().invoke(cli, ["report", "one", "two", "--startup"], catch_exceptions=False)
