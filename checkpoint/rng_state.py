"""The random generators of one rank (torch, numpy, python) as JSON, exactly."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """Return the state of this process's global generators; CUDA's where CUDA is in use."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": {
            "keys": np.asarray(keys, "<u4").tobytes().hex(),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached).hex(),
        },
        "python": {
            "version": version,
            "internal": list(internal),
            "gauss_next": None if gauss_next is None else float(gauss_next).hex(),
        },
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Set this process's global generators to a state that `rng_state` returned."""
    torch.set_rng_state(_byte_tensor(state["torch"]))
    numbers = state["numpy"]
    keys = np.frombuffer(bytes.fromhex(numbers["keys"]), "<u4")
    cached = float.fromhex(numbers["cached_gauss"])
    np.random.set_state(("MT19937", keys, numbers["position"], numbers["has_gauss"], cached))
    python = state["python"]
    gauss = python["gauss_next"]
    random.setstate((python["version"], tuple(python["internal"]), None if gauss is None else float.fromhex(gauss)))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_byte_tensor(state["cuda"]))


def _byte_tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
