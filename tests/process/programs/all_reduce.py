"""A script as one writes it for torchrun: nothing of ett in it."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"rank {os.environ['RANK']}/{os.environ['WORLD_SIZE']} local {os.environ['LOCAL_RANK']} sum {total.item():g}")
print("argv", sys.argv, "path", sys.path[0], "main", __name__)
dist.destroy_process_group()
