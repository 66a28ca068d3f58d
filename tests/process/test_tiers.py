"""Jobs whose rows lie on the SSD or in Redis, against one that has them all in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from launched_job import PROGRAMS, LaunchedJob
from redis_process import RedisProcess
from wait import LONGEST_S, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
RECIPE = ("--set", "data.generate.rows=4000", str(PROGRAMS / "small_dlrm.toml"))
# Just above the most distinct rows of a table that one of two ranks updates in one of the recipe's batches of 200.
CACHES = ("--set", "sparse.cache_rows=130", "--set", "sparse.state_cache_rows=125")
SAME = ("step", "cursor", "auc", "normalized_entropy", "loss_hex")


def facts(job: LaunchedJob) -> dict[str, Any]:
    result = json.loads((job.job_dir / "result.json").read_text())
    same = {name: result[name] for name in SAME} | job.digests()
    return same | {"metrics": (job.job_dir / "metrics.jsonl").read_text()}


@pytest.fixture
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return a function from further flags to what a job in memory ends with."""

    def run(*flags: str) -> dict[str, Any]:
        job = LaunchedJob(tmp_path_factory.mktemp("memory"))
        assert job.run("--nproc", "2", *flags, *RECIPE) == 0, job.err
        return facts(job)

    return run


@pytest.fixture
def redis_server() -> Iterator[RedisProcess]:
    if shutil.which("redis-server") is None:
        pytest.skip("no Redis server is installed: apt-get install redis-server")
    pytest.importorskip("redis", reason="the client is not installed: pip install 'ett[redis]'")
    server = RedisProcess()
    yield server
    server.end()


def on_redis(server: RedisProcess) -> tuple[str, ...]:
    return ("--set", "sparse.tier=redis", "--set", f"sparse.redis_url={server.url}", *CACHES)


def test_a_job_killed_over_the_ssd_tier_ends_with_the_bits_of_one_in_memory(
    job: LaunchedJob, in_memory: Callable[..., dict[str, Any]]
) -> None:
    kills = ("--chaos", "kill:rank=1,step=7", "--chaos", "kill:rank=0,step=14,attempt=2")
    assert job.run("--nproc", "2", "--set", "sparse.tier=ssd", *CACHES, *kills, *RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "failed", "completed"]
    assert facts(job) == in_memory()
    assert not [path for path in (job.job_dir / "tiers").rglob("*") if path.is_file()]


def test_a_bounded_table_killed_over_redis_ends_with_the_bits_of_one_in_memory(
    job: LaunchedJob, in_memory: Callable[..., dict[str, Any]], redis_server: RedisProcess
) -> None:
    rules = ("--set", "sparse.max_rows=200", "--set", "sparse.when_full=lru", "--set", "sparse.admit_after=2")
    kill = ("--chaos", "kill:rank=1,step=11")
    assert job.run("--nproc", "2", *on_redis(redis_server), *rules, *kill, *RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]
    whole = in_memory(*rules)
    assert facts(job) == whole
    # Both ranks' largest tables were full, and some ids were seen only once.
    tables = whole["tables"]
    rows = {name: table["rows"] for name, table in tables.items() if not name.endswith(".sightings")}
    assert 2 * 150 < max(rows.values()) <= 2 * 200
    assert tables["embedding_bags.t_C3.sightings"]["rows"]
    assert pytest.importorskip("redis").Redis.from_url(redis_server.url).dbsize() == 0


def test_a_redis_that_dies_ends_the_job_with_an_error_that_names_table_and_address(
    job: LaunchedJob, redis_server: RedisProcess
) -> None:
    endless = ("--set", "train.epochs=1000")  # or it ends before the test has seen its steps
    supervisor = job.start("--nproc", "2", "--max-restarts", "0", *endless, *on_redis(redis_server), *RECIPE)
    wait_until(lambda: len(job.records("step")) > 6, "some steps")
    redis_server.kill()
    assert supervisor.wait(timeout=LONGEST_S) == 6
    said = job.out + job.err
    assert "error[ETT-S001]: table embedding_bags.t_C" in said
    assert f"Redis at {redis_server.path}" in said
    assert "Traceback" not in said


def test_a_cache_below_one_batch_is_an_error_that_names_table_and_sizes(job: LaunchedJob) -> None:
    too_small = ("--set", "sparse.tier=ssd", "--set", "sparse.cache_rows=20", "--max-restarts", "0")
    assert job.run("--nproc", "2", *too_small, *RECIPE) == 3, job.err
    said = job.out + job.err
    assert "table embedding_bags.t_C" in said
    assert "and the cache of 20 holds" in said
    assert "Traceback" not in said


def test_a_redis_that_is_not_there_is_an_error(job: LaunchedJob) -> None:
    nobody = ("--set", "sparse.tier=redis", "--set", "sparse.redis_url=unix:///nowhere/s", "--max-restarts", "0")
    assert job.run("--nproc", "1", *nobody, *CACHES, *RECIPE) == 6, job.err
    assert "Redis at /nowhere/s" in job.out + job.err
    assert "Traceback" not in job.out + job.err
