"""What a user of `ett launch` sees: real processes, real signals. Those of `cold_job` start the command itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from launched_job import PROGRAMS, LaunchedJob, NewJob
from wait import LONGEST_S, best_of_three, wait_until

from ett.ring_folder import ring_folder

pytestmark = pytest.mark.process
STEPS, PARENT = str(PROGRAMS / "steps.py"), str(PROGRAMS / "parent.py")


def test_a_script_for_torchrun_runs_as_it_does_there(cold_job: LaunchedJob) -> None:
    script = str(PROGRAMS / "all_reduce.py")
    assert cold_job.run("--nproc", "2", script, "--flag", "${local_rank}", "a b") == 0
    for rank in (0, 1):
        assert f"[rank{rank}] rank {rank}/2 local {rank} sum 3" in cold_job.out
    assert f"argv ['{script}', '--flag', '${{local_rank}}', 'a b'] path {PROGRAMS} main __main__" in cold_job.out


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("raise ValueError('boom')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_exit_code_is_the_programs_own(job: LaunchedJob, program: str, code: int) -> None:
    assert job.run("--", sys.executable, "-c", program) == code
    assert [(end["reason"], end["exit_code"]) for end in job.ends()] == [("failed", code)]
    assert job.records("job_ended")[0].data["status"] == "failed"


def test_the_exit_code_is_that_of_the_rank_that_failed_first(job: LaunchedJob) -> None:
    program = "import os, time; r = int(os.environ['RANK']); time.sleep(0 if r == 1 else 600); os._exit(10 + r)"
    assert job.run("--nproc", "2", "--", sys.executable, "-c", program) == 11
    assert job.ends()[0]["first_failing_rank"] == 1


def test_a_users_traceback_shows_none_of_our_frames(cold_job: LaunchedJob) -> None:
    (cold_job.folder / "bad.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    assert cold_job.run("bad.py") == 1
    trace = cold_job.err[cold_job.err.index("Traceback") : cold_job.err.index("ZeroDivisionError")]
    assert trace.count("File ") == 2
    assert "ett" not in trace.replace(str(cold_job.folder), "")


def test_a_killed_rank_comes_back_and_the_job_succeeds(cold_job: LaunchedJob) -> None:
    flags = ("--nproc", "2", "--max-restarts", "2", "--chaos", "kill:rank=1,step=7")
    assert cold_job.run(*flags, STEPS, "12", "0.01") == 0
    first, second = cold_job.ends()
    assert (first["reason"], first["signal"], first["class"], first["first_failing_rank"]) == ("failed", 9, "infra", 1)
    assert second["reason"] == "completed"
    assert cold_job.records("job_ended")[0].data["status"] == "succeeded"
    assert [record.data["restart"] for record in cold_job.records("restart_decision")] == [True]


def test_a_restarted_process_group_meets_only_the_living(job: LaunchedJob) -> None:
    """torch's agent keeps one store for all attempts, and gloo then finds the addresses of dead ranks in it."""
    assert job.run("--nproc", "2", "--max-restarts", "2", str(PROGRAMS / "meets_until.py"), "3") == 0


def test_the_rank_whose_error_the_others_only_felt_is_the_one_that_failed(job: LaunchedJob) -> None:
    """Its connections close while it unwinds: whoever waits for it is gone first, and then it was told to stop."""
    assert job.run("--nproc", "2", str(PROGRAMS / "unwinds.py")) == 1
    (end,) = job.ends()
    assert (end["first_failing_rank"], end["cause"]) == (1, "value_error")


def test_spent_restarts_give_121_with_the_childs_code_in_the_message(job: LaunchedJob) -> None:
    assert job.run("--max-restarts", "1", str(PROGRAMS / "fail_until.py"), "9") == 121
    assert "error[ETT-L121]" in job.err
    assert "exit code was 7" in job.err
    assert len(job.ends()) == 2


def test_restarts_that_suffice_are_not_an_error(job: LaunchedJob) -> None:
    assert job.run("--max-restarts", "2", str(PROGRAMS / "fail_until.py"), "2") == 0


def test_the_same_error_twice_stops_the_restarts(job: LaunchedJob) -> None:
    assert job.run("--max-restarts", "5", "--", sys.executable, "-c", "raise ValueError('at step 12')") == 121
    assert [record.data["rule"] for record in job.records("restart_decision")] == ["restart", "same_user_error"]


def test_the_last_lines_of_the_first_failing_rank_are_kept(job: LaunchedJob) -> None:
    program = "import sys; [print('line', i, file=sys.stderr) for i in range(50)]; sys.exit(3)"
    assert job.run("--", sys.executable, "-c", program) == 3
    tail = (job.job_dir / job.ends()[0]["log_tail"]).read_text().splitlines()
    assert tail == [f"line {i}" for i in range(30, 50)]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_lets_the_ranks_save_before_143(cold_job: LaunchedJob, signum: int) -> None:
    supervisor = cold_job.start("--nproc", "2", STEPS, "5000", "0.01")
    # A rank that has not yet asked whether to stop dies of the signal: each has by its second step.
    wait_until(lambda: {r.rank for r in cold_job.records("step") if r.data["step"] == 2} == {0, 1})
    supervisor.send_signal(signum)
    assert supervisor.wait(timeout=LONGEST_S) == 143
    assert [end["reason"] for end in cold_job.ends()] == ["preempted"]
    assert cold_job.records("preempt_notice")[0].data["signal"] == signum
    assert not cold_job.records("job_ended")
    assert cold_job.out.count("stopped after step") == 2


def test_a_program_that_ignores_the_stop_is_killed_after_the_grace_time(job: LaunchedJob) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    supervisor = job.start("--grace", "0.5", "--", sys.executable, "-c", program)
    wait_until(lambda: "on" in job.out)
    supervisor.terminate()
    assert supervisor.wait(timeout=LONGEST_S) == 137


def test_a_second_interrupt_ends_at_once(job: LaunchedJob) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    supervisor = job.start("--grace", "600", "--", sys.executable, "-c", program)
    wait_until(lambda: "on" in job.out)
    supervisor.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping" in job.err)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(timeout=LONGEST_S) == 130


def test_ranks_that_were_told_by_somebody_else_are_preempted_too(job: LaunchedJob) -> None:
    supervisor = job.start("--nproc", "2", "--max-restarts", "3", STEPS, "5000", "0.01")
    # A rank that has not yet asked whether to stop, which it does after each step, is killed by the signal: a failure.
    wait_until(lambda: {r.rank for r in job.records("step") if r.data["step"] > 1} == {0, 1})
    for pid in job.processes(1):
        subprocess.run(["kill", "-TERM", str(pid)], check=True)
    assert supervisor.wait(timeout=LONGEST_S) == 143
    assert [end["reason"] for end in job.ends()] == ["preempted"]


def test_nothing_outlives_a_killed_supervisor_by_two_seconds(new_job: NewJob) -> None:
    def outlived_s() -> float:
        job = new_job()
        supervisor = job.start("--nproc", "2", PARENT)
        wait_until(lambda: job.out.count("started") == 2 and len(job.processes(1)) == 6)
        supervisor.kill()
        supervisor.wait()
        return wait_until(lambda: not job.processes(1))

    assert best_of_three(outlived_s, 2.0) < 2.0


def test_the_next_supervisor_carries_on_with_the_next_attempt(job: LaunchedJob) -> None:
    supervisor = job.start("--nproc", "2", PARENT)
    wait_until(lambda: job.out.count("started") == 2)
    supervisor.kill()
    supervisor.wait()
    assert job.run("--resume", "auto") == 0
    first, second = job.ends()
    assert (first["att"], first["reason"], first["inferred"], first["class"]) == (1, "failed", True, "unknown")
    assert (second["att"], second["reason"]) == (2, "completed")
    assert len(job.records("job_submitted")) == 1


def test_children_of_a_dead_rank_do_not_meet_the_next_attempt(job: LaunchedJob) -> None:
    script = job.folder / "leaves.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "if os.environ['ETT_ATTEMPT'] == '1':\n"
        "    subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    sys.exit(5)\n"
        "print('alive', subprocess.run(['pgrep', '-c', '-f', 'sleep 600'], capture_output=True, text=True).stdout)\n"
    )
    assert job.run("--max-restarts", "1", "leaves.py") == 0
    assert not job.processes(1)


def test_a_job_that_runs_refuses_a_second_supervisor(job: LaunchedJob) -> None:
    supervisor = job.start(STEPS, "5000", "0.01")
    wait_until(lambda: job.records("proc_start"))
    assert job.run() == 7
    assert f"process {supervisor.pid} " in job.err
    supervisor.terminate()
    assert supervisor.wait(timeout=LONGEST_S) == 143


def test_a_complete_job_is_a_success_at_once(job: LaunchedJob) -> None:
    assert job.run(STEPS, "3", "0") == 0
    assert job.run() == 0
    assert "complete already" in job.err
    assert len(job.ends()) == 1


def test_a_job_whose_supervisor_died_just_before_its_end_is_complete(job: LaunchedJob) -> None:
    assert job.run(STEPS, "3", "0") == 0
    (log,) = (job.job_dir / "events" / "0").iterdir()
    log.write_bytes(b"".join(line for line in log.read_bytes().splitlines(True) if b"job_ended" not in line))
    assert job.run() == 0
    assert [record.data["status"] for record in job.records("job_ended")] == ["succeeded"]
    assert len(job.ends()) == 1


def test_a_reader_that_goes_away_does_not_end_the_job(job: LaunchedJob) -> None:
    launch = f"'{sys.executable}' -m ett launch --job j --max-restarts 1 --chaos kill:step=9 '{STEPS}' 20 0.01"
    command = f"{launch} 2>&1 | head -1"
    subprocess.run(["bash", "-c", command], cwd=job.folder, check=True, capture_output=True)
    wait_until(lambda: job.records("job_ended"))
    assert job.records("job_ended")[0].data["status"] == "succeeded"


def test_a_failed_job_launches_again_from_what_was_kept(job: LaunchedJob) -> None:
    assert job.run("--nproc", "2", str(PROGRAMS / "fail_until.py"), "2") == 7
    assert job.run() == 0
    assert [record.data["world"] for record in job.records("attempt_started")] == [2, 2]


def test_what_is_kept_of_a_launch_has_no_secret(job: LaunchedJob) -> None:
    secrets = dict.fromkeys(("ETT_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "NCCL_AUTH_KEY"), "hunter2")
    assert job.run("--team", "ads", STEPS, "1", "0", **secrets, NCCL_DEBUG="WARN") == 0
    kept = json.loads((job.job_dir / "launch.json").read_text())
    assert (kept["team"], kept["environment"]["NCCL_DEBUG"]) == ("ads", "WARN")
    for path in job.job_dir.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


def test_workers_know_who_they_are(job: LaunchedJob) -> None:
    show = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('ETT_')}))"
    flags = ("--team", "ads", "--owner", "ann", "--grace", "5", "--resume", "120", "--chaos", "kill:step=1,attempt=9")
    assert job.run(*flags, "--", sys.executable, "-c", show) == 0
    environ = json.loads(job.out)
    assert int(environ.pop("ETT_PARENT_WALL_NS")) > 0
    assert environ.pop("ETT_RING") == str(ring_folder(job.job_dir))
    assert environ == {
        "ETT_JOB": "j",
        "ETT_ATTEMPT": "1",
        "ETT_FROM": "",
        "ETT_JOB_DIR": str(job.job_dir),
        "ETT_TEAM": "ads",
        "ETT_OWNER": "ann",
        "ETT_GRACE_S": "5.0",
        "ETT_CHAOS": "kill:rank=0,step=1,point=step,attempt=9",
        "ETT_RESUME": "120",
        "ETT_HAS_COMMITTED": "",
    }


def test_a_home_that_cannot_be_made_gives_one_clear_error(cold_job: LaunchedJob) -> None:
    (cold_job.folder / ".ett").write_text("a file where the folder should be")
    assert cold_job.run(STEPS, "1", "0") == 5
    assert cold_job.err.startswith("error[ETT-P001]")
    assert "Traceback" not in cold_job.err


def test_a_fault_that_never_fired_is_said_at_the_end(job: LaunchedJob) -> None:
    flags = ("--max-restarts", "1", "--chaos", "kill:rank=0,step=3", "--chaos", "kill:rank=0,step=9")
    assert job.run(*flags, STEPS, "5", "0.01") == 0
    assert [line for line in job.err.splitlines() if "never fired" in line] == [
        "ett: chaos: kill:rank=0,step=9 never fired (the job ended at step 5)"
    ]


def test_what_a_program_says_steers_no_terminal_in_the_supervisors_own_lines(job: LaunchedJob) -> None:
    program = r"import sys; sys.exit('ValueError: \x1b]0;owned\x07\x1b[2J bad')"
    assert job.run("--max-restarts", "1", "--", sys.executable, "-c", program) == 121
    ours = [line for line in job.err.splitlines() if line.startswith(("ett:", "error["))]
    assert any("restart 1 of 1" in line for line in ours)
    assert all(line.isprintable() for line in ours)


def test_records_that_nothing_can_take_are_said(job: LaunchedJob) -> None:
    """With files of at most 4 KiB there is neither a ring nor a log; the program itself goes on."""
    (job.folder / "small.py").write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\nimport ett\nrun = ett.init()\n"
        "for step in range(200):\n    with run.step(samples=1):\n        pass\n"
    )
    assert job.run("--hooks", "none", "small.py") == 0
    assert "records of rank 0 could not be written: its time will look untracked" in job.err
