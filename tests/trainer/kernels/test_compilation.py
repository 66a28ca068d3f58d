"""The interpreter runs what the compiler refuses; so the compiler is asked, too, which needs no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("dim", [pytest.param(64, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.campaign)])
def test_every_kernel_compiles_for_an_h200(dim: int, device: torch.device, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / ".venv" / "triton")])
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environ |= {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("compile_kernels.py")), str(dim)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,  # half a minute of a processor, and others may want it, too
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    sources = [path.read_text() for path in (ROOT / "trainer" / "kernels").glob("triton_*.py")]
    assert sorted(done.stdout.split()) == sorted(re.findall(r"^def (\w+_kernel)\(", "\n".join(sources), re.MULTILINE))
