"""A job that is killed, whose chain is then rewritten, and that goes on, ends with the bits of one that ran through."""

from __future__ import annotations

import pytest
from launched_job import PROGRAMS, LaunchedJob
from wait import LONGEST_S

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.verify import with_digests

pytestmark = [pytest.mark.process, pytest.mark.slow]
RECIPE = str(PROGRAMS / "small_dlrm.toml")


def newest(job: LaunchedJob) -> Commit:
    """Return the newest commit with the digests of its data."""
    store = LocalStore(job.job_dir / "checkpoints")
    return with_digests(store, find_commit(store, None)[0])


def test_a_job_goes_on_from_its_rewritten_chain(job: LaunchedJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    flags = ("--nproc", "2", "--set", "checkpoint.policy=incremental", "--set", "recovery.max_restarts=0")
    assert job.run(*flags, "--chaos", "kill:rank=1,step=18", RECIPE) != 0
    chain = newest(job)
    assert (chain.type, chain.step) == ("delta", 16)
    for _ in range(2):  # the second finds a base
        assert job.start_ett("checkpoint", "compact", "j").wait(timeout=LONGEST_S) == 0, job.err
    rewrite = newest(job)
    assert (rewrite.type, rewrite.step, rewrite.digest) == ("rewrite", 16, chain.digest)
    assert rewrite.num_bytes < chain.num_bytes
    assert job.run(*flags, RECIPE) == 0, job.err
    assert [record.data["step"] for record in job.records("restore")] == [16]
    whole = LaunchedJob(tmp_path_factory.mktemp("whole"))
    try:
        assert whole.run("--nproc", "2", RECIPE) == 0, whole.err
        assert (newest(job).step, newest(job).digest) == (newest(whole).step, newest(whole).digest)
    finally:
        whole.end()
