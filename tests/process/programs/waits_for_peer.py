"""Rank 1 never joins: rank 0 waits for it in native code, as in any start-up whose peers are slow."""

import os
import time

import torch.distributed as dist

import ett

run = ett.init()
with run.span("process_group"):
    if os.environ["RANK"] == "0":
        dist.init_process_group("gloo")
    time.sleep(600)
