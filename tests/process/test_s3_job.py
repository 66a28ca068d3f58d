"""A job whose checkpoints go to a real S3 server on a disk: killed ranks, a killed server, a server that comes back."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from gate import Gate
from launched_job import PROGRAMS, LaunchedJob
from wait import LONGEST_S, wait_until

from ett.checkpoint.bench.seaweed import KEYS, find_weed, free_ports, s3_options, seaweed
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.s3_store import S3Store
from ett.checkpoint.store import Store
from ett.checkpoint.verify import damage

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed: make peers"),
]
RECIPE = str(PROGRAMS / "small_dlrm.toml")
# An upload that has failed for some minutes waits for half a minute, in which such a test would learn nothing.
RETRIES_SOON = "from ett.checkpoint import uploader; uploader.LONGEST_WAIT_S = 1.0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as (url, _):
        yield url


def bucket(url: str) -> S3Store:
    """Return the folder of a new bucket."""
    store = S3Store(f"s3://job-{uuid4().hex[:12]}/checkpoints", options=s3_options(url))
    store.client.run(lambda: store.client.request("create_bucket"))
    return store


def environ(url: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEYS["key"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def digest(job: LaunchedJob, store: Store | None = None) -> tuple[int, str]:
    result = json.loads((job.job_dir / "result.json").read_text())
    return result["step"], job.digests(store)["digest"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Where a job with local checkpoints ends that nothing happens to."""
    job = LaunchedJob(tmp_path_factory.mktemp("whole"))
    assert job.run("--nproc", "2", RECIPE) == 0, job.err
    return digest(job)


def assert_ended_well(job: LaunchedJob, store: S3Store, whole: tuple[int, str]) -> None:
    assert digest(job, store) == whole
    known, damaged = CommitLog(store).read_all()
    assert not damaged
    assert line_of_history(known)[0].step == whole[0]
    assert all(damage(store, commit, "load") is None for commit in known.values())
    assert store.unfinished() == {}
    assert {r.data["tier"] for r in job.records("ckpt_commit")} == {"local", "remote"}
    assert job.records("ckpt_upload")


def test_a_job_killed_twice_ends_with_the_bits_of_one_that_saved_locally(
    job: LaunchedJob, server: str, whole: tuple[int, str]
) -> None:
    store = bucket(server)
    chaos = ("--chaos", "kill:rank=0,step=7", "--chaos", "kill:rank=1,step=14,attempt=2")
    flags = ("--nproc", "2", "--set", f"checkpoint.uri={store.uri}", *chaos)
    assert job.run(*flags, RECIPE, **environ(server)) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "failed", "completed"]
    assert_ended_well(job, store, whole)
    listed = job.start_ett("checkpoint", "ls", "j", "--json", **environ(server))
    assert listed.wait(timeout=LONGEST_S) == 0
    rows = json.loads(job.out[job.out.index('{\n  "schema": "ett.checkpoint.ls/v1"') :])["data"]["commits"]
    assert {row["tier"] for row in rows} == {"remote"}
    assert rows[0]["step"] == whole[0]


def test_a_host_that_is_lost_is_replaced_by_one_that_reads_the_bucket(
    job: LaunchedJob, server: str, whole: tuple[int, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = bucket(server)
    # A buffer without room: a save waits until the one before has arrived, so that something has at step 14.
    sets = (f"checkpoint.uri={store.uri}", "checkpoint.buffer_bytes=1", "recovery.max_restarts=0")
    flags = ("--nproc", "2", *(word for setting in sets for word in ("--set", setting)))
    assert job.run(*flags, "--chaos", "kill:rank=1,step=14", RECIPE, **environ(server)) != 0
    other = LaunchedJob(tmp_path_factory.mktemp("other"))  # nothing of the first host's disk
    try:
        assert other.run(*flags, RECIPE, **environ(server)) == 0, other.err
        assert other.records("restore")[0].data["step"] in (8, 12)
        assert digest(other, store) == whole
    finally:
        other.end()


def test_training_goes_on_while_the_server_is_dead_and_sends_when_it_is_back(
    job: LaunchedJob, tmp_path: Path, whole: tuple[int, str]
) -> None:
    ports = free_ports()
    with ExitStack() as stack:
        url, process = stack.enter_context(seaweed(tmp_path / "seaweed", ports))
        store = bucket(url)
        gate = Gate(job.folder / "gate", rank=1, step=10, also=RETRIES_SOON)
        flags = ("--nproc", "2", "--set", f"checkpoint.uri={store.uri}", *gate.flags)
        supervisor = job.start(*flags, RECIPE, **gate.environ, **environ(url))
        gate.wait_for_rank()
        process.kill()
        process.wait()
        gate.open()
        wait_until(
            lambda: (
                any(r.data["step"] == whole[0] for r in job.records("ckpt_commit")) or supervisor.poll() is not None
            ),
            "the last commit in the buffer",
        )
        assert supervisor.poll() is None, job.err  # it waits for its uploads
        stack.enter_context(seaweed(tmp_path / "seaweed", ports))
        assert supervisor.wait(timeout=LONGEST_S) == 0, job.err
        assert_ended_well(job, store, whole)


def test_a_job_stopped_while_the_server_is_dead_ends_in_time_and_leaves_its_uploads_to_the_next_start(
    job: LaunchedJob, tmp_path: Path
) -> None:
    with seaweed(tmp_path / "seaweed") as (url, process):
        store = bucket(url)
        sets = ("--set", f"checkpoint.uri={store.uri}", "--set", "train.epochs=50")
        supervisor = job.start("--nproc", "2", *sets, RECIPE, **environ(url))
        wait_until(lambda: job.records("ckpt_commit"), "a first commit")
        process.kill()
        process.wait()
        num_known = len(job.records("ckpt_commit"))
        wait_until(lambda: len(job.records("ckpt_commit")) > num_known, "a commit that cannot be sent")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(timeout=LONGEST_S) == 143, job.err
        assert [end["reason"] for end in job.ends()] == ["preempted"]
        assert f"for {store.uri}; the next start of the job on this host sends them" in job.err + job.out
