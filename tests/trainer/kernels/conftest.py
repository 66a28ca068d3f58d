"""Triton runs its kernels in an interpreter where there is no GPU; `make peers` puts it into a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
if importlib.util.find_spec("triton") is None:
    sys.path.append(str(Path(__file__).parents[3] / ".venv" / "triton"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    pytest.importorskip("triton", reason="triton is not installed: make peers")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
