"""One rank through all phases of a job; at the phase argv[1] of attempt 1 it waits for what the test does to it.

Beside ett it keeps a stopwatch of its own in the file marks: lines of monotonic ns, attempt and what happened.
"""

import os
import sys
import time
from pathlib import Path

import ett

NUM_STEPS, WAIT_S = 10, 300.0
target, folder = sys.argv[1], Path(sys.argv[2])
run = ett.init()
state, order = folder / "state", folder / "order"
has_asked = False


def mark(what: str) -> None:
    with (folder / "marks").open("a") as file:
        file.write(f"{time.monotonic_ns()} {run.attempt} {what}\n")


def stop_requested() -> bool:
    global has_asked  # noqa: PLW0603 - before the first step nobody asks, and SIGTERM ends the process
    has_asked = True
    return run.stop_requested


def at(phase: str) -> None:
    """Say that the phase is reached, and do as the test orders: `go` or `exit N`."""
    if run.attempt != 1 or phase != target:
        return
    mark(f"at {phase}")
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        run.heartbeat()  # so that the log's last record is as young as the stopwatch's
        text = order.read_text() if order.exists() else ""
        if text.startswith("exit"):
            os._exit(int(text.split()[1]))
        if text == "go" or (has_asked and stop_requested()):
            return
        time.sleep(0.02)
    sys.exit("nobody came")


def commit(step: int) -> None:
    run.ckpt_begin(f"c{step}", step, step)
    with run.span("ckpt_save"):
        fresh = state.with_suffix(".new")
        fresh.write_text(str(step))
        at("ckpt staging")
        fresh.replace(state)
        at("ckpt commit")
        run.committed(step, step, state.as_uri(), ckpt_id=f"c{step}")


def end_if_asked(step: int) -> None:
    if stop_requested():
        commit(step)
        sys.exit(143)


with run.span("init"):
    at("init")
first = int(state.read_text()) if state.exists() else 0
run.restored(first, first)
with run.span("compile"):
    at("compile")
for step in range(first + 1, NUM_STEPS + 1):
    mark(f"begin {step}")
    with run.step(global_samples=1, step=step):
        mark(f"in {step}")
        time.sleep(0.02)
        if step == 7:
            at("step")
        mark(f"out {step}")
    mark(f"end {step}")
    end_if_asked(step)
    if step in (5, NUM_STEPS):
        commit(step)
        end_if_asked(step)
    if step == 8:
        with run.span("eval"):
            at("eval")
        end_if_asked(step)
with run.span("publish"):
    at("publish")
end_if_asked(NUM_STEPS)
run.train_end()
with run.span("teardown"):
    at("teardown")
end_if_asked(NUM_STEPS)
