"""What torch really compiles, in processes of their own: the next process has it from the cache, at another path."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ett.compile_cache.pack import open_pack, seal_pack
from ett.compile_cache.signing_key import signing_key

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
from ett.trainer.compile_ahead import forget_compiled
compiled = torch.compile(lambda x: (x.sin() * 2).cos(), dynamic=False)
try:
    value = compiled(torch.arange(8.0))
except Exception as err:
    cache.discard(str(err))
    forget_compiled()
    value = compiled(torch.arange(8.0))
    fetched = "refused"
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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Have a home with what a first process has compiled; `cold.json` is what that one printed."""
    home = tmp_path_factory.mktemp("home")
    (home / "cold.json").write_text(json.dumps(run(home / "first")))
    return home


@pytest.mark.slow
@pytest.mark.process
def test_a_process_finds_what_another_has_compiled(home: Path) -> None:
    cold, warm = json.loads((home / "cold.json").read_text()), run(home / "second")
    assert (cold[0], cold[1], cold[3]) == ("miss", {"hit": 0, "miss": 1}, "published")
    assert (warm[0], warm[1], warm[3]) == ("hit", {"hit": 1, "miss": 0}, "nothing_new")
    assert warm[2] == cold[2]


@pytest.mark.slow
@pytest.mark.process
def test_a_process_that_cannot_load_what_it_fetched_compiles_as_if_there_were_nothing(
    home: Path, tmp_path: Path
) -> None:
    """With the same bits: torch must not believe that a broken object of the folder says what this processor can do."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    break_objects(tmp_path)
    cold, mended = json.loads((home / "cold.json").read_text()), run(tmp_path / "third")
    assert (mended[0], mended[3]) == ("refused", "published")
    assert mended[2] == cold[2]


def break_objects(home: Path) -> None:
    """Sign objects that are none, as a host would whose disk has lost them."""
    secret = signing_key("", {"ETT_HOME": str(home)})
    (path,) = (home / "compile-cache").rglob("*.pack")
    pack = open_pack(path.read_bytes(), secret, key=path.parent.name, most_bytes=1 << 30, where="here")
    files = {name: b"" if name.endswith(".so") else data for name, data in pack.files.items()}
    path.write_bytes(seal_pack(replace(pack, files=files), secret))
