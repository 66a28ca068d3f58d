"""What torch really compiles, in processes of their own: the next process has it from the cache, at another path."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, sys
from pathlib import Path
from ett.compile_cache import CompileCache, CompileConfig, key_parts
folder = Path(sys.argv[1])
parts = key_parts(code=[], model={}, options={"dynamic": False, "threads": 1}, shapes=[[8]])
cache = CompileCache(CompileConfig(), parts, folder, os.environ, lambda ev, **fields: None)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
fetched = cache.fetch().result
import torch
torch.set_num_threads(1)
value = torch.compile(lambda x: (x.sin() * 2).cos(), dynamic=False)(torch.arange(8.0))
from torch._dynamo.utils import counters
graphs = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
print(json.dumps([fetched, graphs, value.tolist(), cache.publish()]))
"""


def run(folder: Path) -> Any:
    environ = {"ETT_HOME": str(folder.parent), "PATH": "/usr/bin:/bin", "HOME": str(folder.parent)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True, env=environ
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.process
def test_a_process_finds_what_another_has_compiled(tmp_path: Path) -> None:
    cold, warm = run(tmp_path / "first"), run(tmp_path / "second")
    assert (cold[0], cold[1], cold[3]) == ("miss", {"hit": 0, "miss": 1}, "published")
    assert (warm[0], warm[1], warm[3]) == ("hit", {"hit": 1, "miss": 0}, "nothing_new")
    assert warm[2] == cold[2]
