"""Meet the other ranks by gloo; rank 1 fails until attempt N."""

import os
import sys

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
os._exit(1 if int(os.environ["ETT_ATTEMPT"]) < int(sys.argv[1]) and os.environ["RANK"] == "1" else 0)
