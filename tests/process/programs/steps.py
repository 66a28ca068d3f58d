"""Train for N steps of 4 samples, commit every 5th, stop on request: a job without torch."""

import sys
import time

import ett

num_steps, step_s = int(sys.argv[1]), float(sys.argv[2])
run = ett.init()
for number in range(1, num_steps + 1):
    with run.step(samples=4, step=number):
        time.sleep(step_s)
    if number % 5 == 0:
        run.committed(number, number * 4 * run.world_size, "file:///nowhere")
    if run.stop_requested:
        run.committed(number, number * 4 * run.world_size, "file:///nowhere")
        print(f"stopped after step {number}")
        sys.exit(143)
run.train_end()
print(f"rank {run.rank} of {run.world_size} done in attempt {run.attempt}")
