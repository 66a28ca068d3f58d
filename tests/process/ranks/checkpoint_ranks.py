"""One rank: argv = rank, world size, store file, folder, the step to restore or 0, a seed. Prints what it saves."""

import sys
from pathlib import Path

import torch.distributed as dist

from ett.checkpoint.ranks import current_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "checkpoint"))
from checkpoint_world import Rank

rank, world_size, store, folder = *map(int, sys.argv[1:3]), sys.argv[3], Path(sys.argv[4])
expected, seed = map(int, sys.argv[5:7])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
me = Rank(folder, current_ranks())
position = me.checkpointer.restore()
assert (position.step if position else 0) == expected, position
if expected:
    digest = me.checkpointer.save(expected + 100, 0).digest
else:
    me.fill(seed)
    digest = me.checkpointer.save(seed, seed * 10).digest
if rank == 0:
    print(digest)
me.checkpointer.close()
dist.destroy_process_group()
