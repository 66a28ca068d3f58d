"""The files of a cache folder of torch's that a pack may have: an allow-list, since what is unpacked is executed."""

from __future__ import annotations

import re

# Below TORCHINDUCTOR_CACHE_DIR (torch 2.11 to 2.13): compiled graphs by their keys; sources, shared objects and
# autotuning's choices by the first two letters of their hash; Triton's kernels by device and hash. Not among them:
# locks, temporary names, and `dynamo/`, whose profile says what to compile with dynamic shapes: a restarted job would
# compile other code than the first attempt did.
_HASH = r"[a-z0-9]{40,72}"
_ALLOWED = re.compile(
    "|".join(
        (
            rf"(?:fxgraph|aotautograd)/[a-z0-9]{{2}}/[a-z0-9]{{40,72}}/{_HASH}",
            rf"[a-z0-9]{{2}}/{_HASH}(?:\.(?:main|kernel|wrapper|header))?\.(?:py|cpp|so|best_config|cubin|json|h|o)",
            r"triton/[0-9]{1,3}/[A-Z0-9]{40,72}/(?:__grp__)?[A-Za-z0-9_]{1,200}(?:\.[A-Za-z0-9_-]{1,80}){0,2}"
            r"\.(?:json|ttir|ttgir|llir|ptx|cubin|source|so)",
        )
    )
)
_GRAPH = re.compile(r"((?:fxgraph|aotautograd)/[a-z0-9]{2}/[a-z0-9]{40,72})/.*")


def is_allowed(path: str) -> bool:
    """Return whether a relative path with slashes is one of torch's compile caches."""
    return _ALLOWED.fullmatch(path) is not None


def identity(path: str) -> str:
    """Return what two processes that compile the same have in common: the pickle of a graph may differ, its key not."""
    found = _GRAPH.fullmatch(path)
    return found[1] if found else path


def is_graph(path: str) -> bool:
    """Return whether a path has a compiled graph, without which sources and kernels are of no use."""
    return _GRAPH.fullmatch(path) is not None
