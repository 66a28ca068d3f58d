"""Gather what a GPU machine without a registry lacks: wheels for its Python, and a script that builds there.

`make device-pack` writes `device-pack/`, which git ignores. On the machine, in the repository's root:

    source device-pack/setup.sh && python3 -m ett --help
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACK = ROOT / "device-pack"
LIMIT_BYTES = 64 << 20  # what one call may carry to the machine
DEVICE_PYTHON = "3.12"
# What the core and the tests of server and exporter need and the GPU image lacks; tests of S3 and PostgreSQL are
# skipped there.
LACKING = (
    *("tenacity", "zstandard", "starlette", "uvicorn", "oteltap"),
    *("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-proto", "opentelemetry-semantic-conventions"),
    *("opentelemetry-exporter-http-transport", "opentelemetry-exporter-otlp-common"),
    *("opentelemetry-exporter-otlp-proto-common", "opentelemetry-exporter-otlp-proto-http"),
    "googleapis-common-protos",
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
SETUP = """\
# source device-pack/setup.sh, in the repository root: installs the carried wheels aside, builds the extensions.
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/ett-site \\
    device-pack/wheels/*.whl &&
    python3 setup.py -q build_ext --inplace -j "$(nproc)" &&
    export PYTHONPATH="/tmp/ett-site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
"""


def pinned(name: str) -> str:
    """Return the requirement of constraints.txt for `name`, such as "tenacity==9.2.1"."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.lower().startswith(f"{name}=="))


def main() -> None:
    wheels = PACK / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("*.whl"):
        old.unlink()
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", DEVICE_PYTHON, "--implementation", "cp", *platforms, "-d", str(wheels)]
    subprocess.run([*command, *map(pinned, LACKING)], check=True)
    (PACK / "setup.sh").write_text(SETUP)
    size = sum(path.stat().st_size for path in PACK.rglob("*") if path.is_file())
    if size > LIMIT_BYTES:
        sys.exit(f"device-pack is {size} bytes; one call carries at most {LIMIT_BYTES}; shorten LACKING in {__file__}")
    print(f"device-pack: {size / 2**20:.1f} MiB of {LIMIT_BYTES >> 20} MiB; there: source device-pack/setup.sh")


if __name__ == "__main__":
    main()
