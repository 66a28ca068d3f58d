"""A fresh process of `ett bench compile`: compiles one model's first step and says what each part took.

As a rank's start does, it fetches while torch is imported and the model built; what is left of that then counts.

argv = JSON: `model`, its `name`, `threads`, `home` (of the cache), `uri` (of a shared one; "" for none), `folder` (of
torch's). Prints JSON: `result` of the fetch, seconds of each part, graphs that torch found and did not find, a digest
of the step's results.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ett.compile_cache import CompileCache, CompileConfig, key_parts
from ett.compile_cache.cache import Fetched
from ett.trainer.compile_plan import FOLDER_VARIABLE

MODELS = "ett.trainer.bench.compiled_models"
COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
_HERE = Path(__file__).parent


def measured_start(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch, compile and take two steps; the second is what a step costs when it is compiled."""
    folder = Path(plan["folder"])
    parts = key_parts(
        code=[_HERE / "compiled_models.py", *(_HERE.parent / "dense").glob("*.py")],
        model={"name": plan["name"], **plan["model"]},
        options={"dynamic": False, "threads": plan["threads"]},
        shapes=[],
    )
    environ = {**os.environ, "ETT_HOME": plan["home"]}
    cache = CompileCache(CompileConfig(uri=plan["uri"]), parts, folder, environ, lambda ev, **fields: None)
    os.environ[FOLDER_VARIABLE] = str(folder)
    found: list[Fetched] = []
    fetching = threading.Thread(target=lambda: found.append(cache.fetch()))
    fetching.start()
    step = import_module(MODELS).compiled_step(plan["name"], plan["model"], plan["threads"])
    seconds: dict[str, float] = {}
    _timed(seconds, "fetch", fetching.join)
    _timed(seconds, "imports", lambda: [import_module(name) for name in COMPILER])
    results = _timed(seconds, "first_step", step)
    _timed(seconds, "second_step", step)
    published = cache.publish()
    counters = import_module("torch._dynamo.utils").counters["inductor"]
    return {
        "result": found[0].result,
        "published": published,
        "pack_bytes": found[0].num_bytes,
        "fetch_s": found[0].seconds,
        "seconds": seconds,
        "compile_s": seconds["fetch"] + seconds["imports"] + seconds["first_step"] - seconds["second_step"],
        "graphs_found": counters["fxgraph_cache_hit"],
        "graphs_compiled": counters["fxgraph_cache_miss"],
        "digest": hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in results)).hexdigest(),
    }


def _timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    done = work()
    seconds[name] = time.perf_counter() - began
    return done


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(measured_start(json.loads(sys.argv[1]))) + "\n")
