"""Jobs whose rows lie on the SSD or in Redis, against one that has them all in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from launched_job import PROGRAMS, LaunchedJob
from redis_process import RedisProcess
from wait import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
RECIPE = ("--set", "data.generate.rows=6000", str(PROGRAMS / "small_dlrm.toml"))
# Just above the most distinct rows of a table that one of two ranks updates in one of the recipe's batches of 200.
CACHES = ("--set", "sparse.cache_rows=130", "--set", "sparse.state_cache_rows=125")
RULES = ("--set", "sparse.max_rows=900", "--set", "sparse.when_full=lru", "--set", "sparse.admit_after=2")
SAME = ("step", "cursor", "digest", "tables", "dense", "auc", "normalized_entropy", "loss_hex")


def facts(job: LaunchedJob) -> dict[str, Any]:
    result = json.loads((job.job_dir / "result.json").read_text())
    return {name: result[name] for name in SAME} | {"metrics": (job.job_dir / "metrics.jsonl").read_text()}


@pytest.fixture(scope="module", params=[(), RULES], ids=["all rows", "bounded"])
def in_memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[str, ...], dict[str, Any]]:
    job = LaunchedJob(tmp_path_factory.mktemp("memory"))
    assert job.run("--nproc", "2", *request.param, *RECIPE) == 0, job.err
    return request.param, facts(job)


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


KILLS = ("--chaos", "kill:rank=1,step=10", "--chaos", "kill:rank=0,step=19,attempt=2")


def test_a_job_killed_over_the_ssd_tier_ends_with_the_bits_of_one_in_memory(
    job: LaunchedJob, in_memory: tuple[tuple[str, ...], dict[str, Any]]
) -> None:
    rules, whole = in_memory
    assert job.run("--nproc", "2", "--set", "sparse.tier=ssd", *CACHES, *rules, *KILLS, *RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "failed", "completed"]
    assert facts(job) == whole
    assert not [path for path in (job.job_dir / "tiers").rglob("*") if path.is_file()]


def test_a_job_killed_over_redis_ends_with_the_bits_of_one_in_memory(
    job: LaunchedJob, in_memory: tuple[tuple[str, ...], dict[str, Any]], redis_server: RedisProcess
) -> None:
    rules, whole = in_memory
    assert job.run("--nproc", "2", *on_redis(redis_server), *rules, *KILLS, *RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "failed", "completed"]
    assert facts(job) == whole
    assert pytest.importorskip("redis").Redis.from_url(redis_server.url).dbsize() == 0


def test_a_redis_that_dies_ends_the_job_with_an_error_that_names_table_and_address(
    job: LaunchedJob, redis_server: RedisProcess
) -> None:
    supervisor = job.start("--nproc", "2", "--max-restarts", "0", *on_redis(redis_server), *RECIPE)
    wait_until(lambda: len(job.records("step")) > 6, 60, "some steps")
    redis_server.kill()
    assert supervisor.wait(timeout=60) == 6
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
