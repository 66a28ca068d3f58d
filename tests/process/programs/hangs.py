"""All-reduce once a step on gloo; in step 6 of attempt 1 the rank of argv[2] does what argv[1] says."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import ett

how, who = sys.argv[1], int(sys.argv[2])
run = ett.init()


def next_batch(step: int) -> torch.Tensor:
    if step == 6 and run.attempt == 1 and run.rank == who and how == "reader":
        threading.Event().wait()
    return torch.ones(2)


with run.span("process_group"):
    dist.init_process_group("gloo")
for step in range(1, 11):
    with run.step(samples=2):
        batch = next_batch(step)
        if step == 6 and run.attempt == 1 and run.rank == who:
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == "silent":  # it leaves the collective, and its connections stay open
                with run.span("a_name_that_means_nothing"):
                    time.sleep(600)
            elif how == "native":  # a deadlock in C that holds the GIL, so that no other thread of Python runs either
                mutex, libc = ctypes.create_string_buffer(256), ctypes.PyDLL(None)
                libc.pthread_mutex_lock(mutex)
                libc.pthread_mutex_lock(mutex)
            elif how == "evaluation":
                with run.span("eval"):
                    time.sleep(4)
        dist.all_reduce(batch)
    time.sleep(0.02)
run.train_end()
