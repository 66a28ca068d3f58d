"""The software and the machine that compiled code is made for, found without importing torch.

The fetch begins before torch is there, so what torch would say is read from its files and from the driver's.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from ett.compile_cache.code_digest import code_digest
from ett.compile_cache.key import Json, KeyParts
from ett.versions import version_of

COMPILER_LIMIT_S = 10.0  # for its version; one that blocks, a wrapper say, must not hold the start
_PROC = Path("/proc")
_TORCH_FACT = re.compile(r"^(__version__|cuda|git_version)[^=]*= *'([^']*)'", re.MULTILINE)
# Options of torch's compilers that are set by variables; where caches lie, and what is printed, changes no code.
# ATEN_CPU_CAPABILITY: what C++ code is tiled for; torch's own key of a graph lacks it, its key of the object has it, so
# an object for other vectors would be made of the cached source.
_OPTIONS = re.compile(r"(TORCHINDUCTOR|TORCHDYNAMO|TORCH_COMPILE|TRITON|AOT_)_?\w*|CXX|CUDA_HOME|ATEN_CPU_CAPABILITY")
_NO_OPTIONS = re.compile(
    r"\w*_(CACHE_DIR|DUMP_DIR|LOG(S|GING|PATH)?(_\w*)?|TRACE|VERBOSE|PROGRESS|COMPILE_THREADS|CACHE_MANAGER)"
    r"|TRITON_HOME|TORCH_COMPILE_DEBUG\w*"
)


def key_parts(
    *,
    code: Iterable[Path],
    model: Mapping[str, Json],
    options: Mapping[str, Json],
    shapes: Json,
    environ: Mapping[str, str] = os.environ,
) -> KeyParts:
    """Return what a key is made of on this host, for compiled code of one model.

    Args:
        code: source files that the compiler sees; comments and docstrings in them are of no influence.
        model: its configuration, plain JSON values. options: what torch.compile is called with, threads included.
        shapes: sizes that are compiled, and which of them may vary.
        environ: variables of torch's compilers are options as well.
    """
    return KeyParts(
        software=software_facts(environ),
        machine=machine_facts(),
        code=code_digest(code),
        model=model,
        options={**options, "environment": environment_options(environ)},
        shapes=shapes,
    )


def software_facts(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return versions of Python, torch, Triton, the C++ compiler and the C library."""
    facts = {"python": platform.python_version(), "triton": version_of("triton") or version_of("pytorch-triton")}
    facts["libc"] = " ".join(platform.libc_ver())
    facts["compiler"] = _compiler(environ)
    return facts | torch_facts()


def torch_facts() -> dict[str, str]:
    """Return torch's version, commit and CUDA version from its version.py; {} where torch is not installed."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    text = Path(spec.origin).with_name("version.py").read_text()
    return {f"torch {name.strip('_')}": value for name, value in _TORCH_FACT.findall(text)}


def machine_facts(proc: Path = _PROC) -> dict[str, str | list[str]]:
    """Return what code is made for: the processor (inductor compiles for this very one), GPUs and their driver."""
    cpuinfo = _text(proc / "cpuinfo")
    flags = next((line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), "")
    model = next((line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "")
    words = " ".join(sorted(flags.partition(":")[2].split()))
    return {
        "arch": platform.machine(),
        "byteorder": sys.byteorder,
        "cpu": model,
        "cpu_flags": hashlib.sha256(words.encode()).hexdigest()[:16],
        "gpus": sorted({_model_of(path) for path in (proc / "driver/nvidia/gpus").glob("*/information")}),
        "driver": _text(proc / "driver/nvidia/version").partition("\n")[0],
    }


def environment_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set options of torch's compilers."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if _OPTIONS.fullmatch(name) and not _NO_OPTIONS.fullmatch(name)
    }


def _compiler(environ: Mapping[str, str]) -> str | None:
    name = shutil.which(environ.get("CXX") or "g++")
    if name is None:
        return None
    try:
        asked = subprocess.run(
            [name, "--version"], capture_output=True, text=True, check=True, timeout=COMPILER_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.partition("\n")[0]


def _model_of(information: Path) -> str:
    lines = _text(information).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such device here
        return ""
