"""What is launched: checked, kept in the job's folder (launch.json), and read back to launch it again."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ett.errors import NotFound
from ett.job_folder import JobFolder, read_json, write_json
from ett.seams import SEAMS
from ett.versions import ett_version, version_of

Kind = Literal["recipe", "script", "module", "command"]
SCHEMA = "ett.launch/v1"
HOOKS_FOLDER = Path(__file__).parent / "hooks" / "startup"
# Kept for whoever has to find out why a job behaved as it did; everything else of the environment stays out.
ENVIRONMENT_KEPT = re.compile(
    r"(OMP|MKL|CUDA|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH)_[A-Z0-9_]+|PYTHONPATH|PYTHONHASHSEED|LD_LIBRARY_PATH"
    r"|VIRTUAL_ENV|ETT_HOME|ETT_CONFIG|SLURM_JOB_ID|LANG"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|_KEY|APIKEY|SIGNATURE")
_VERSIONS = ("torch", "numpy")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """One command, how many processes run it, and how it comes back."""

    kind: Kind
    target: str  # the recipe's path, the script's path, the module's name or the program
    args: tuple[str, ...] = ()
    cwd: str
    nproc: int = 1
    nproc_min: int = 0  # the fewest to go on with; 0: as many as nproc
    model: str = "job"
    team: str = ""
    owner: str = ""
    recovery: dict[str, Any] = field(default_factory=dict)  # the [recovery] section, every key
    telemetry: dict[str, Any] = field(default_factory=dict)  # the [telemetry] section, every key
    config_hash: str = ""  # of the resolved recipe
    resume: str = "auto"  # auto, never or a step: of this launch only, never kept
    chaos: tuple[str, ...] = ()  # likewise
    source: dict[str, Any] = field(default_factory=dict)  # the commit of another job that this one begins with
    overrides: tuple[str, ...] = ()  # what --set and the flags changed in the recipe; its kept sections have them

    @property
    def fewest(self) -> int:
        return self.nproc_min or self.nproc

    def program(self) -> list[str]:
        """Return the argument vector of each worker."""
        python = [sys.executable, "-u"]  # unbuffered: the last lines before a crash must reach the log
        if self.kind == "command":
            return [self.target, *self.args]
        if self.kind == "recipe":
            return [*python, "-m", SEAMS["recipe_main"]]
        return [*python, *(["-m"] if self.kind == "module" else []), self.target, *self.args]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that start the hooks in each worker: none for a recipe, which says itself what it does.

        Python loads the `sitecustomize` of that folder before the program, and it takes the folder away again.
        """
        if self.kind not in ("script", "module"):
            return {}
        folder = str(HOOKS_FOLDER)
        # Of the second attempt the environment holds what the first one was given.
        before = environ.get("PYTHONPATH", "").removeprefix(folder).removeprefix(os.pathsep)
        return {
            "ETT_HOOKS": self.telemetry.get("hooks", "all"),
            "PYTHONPATH": f"{folder}{os.pathsep}{before}" if before else folder,
        }

    def program_text(self) -> str:
        """Return what `ett launch` was told to run, quoted for a shell."""
        before = {"recipe": [word for value in self.overrides for word in ("--set", value)], "module": ["-m"]}
        before["command"] = ["--"]
        return shlex.join([*before.get(self.kind, []), self.target, *self.args])

    def keep(self, folder: JobFolder, sections: Mapping[str, Any] | None, environ: Mapping[str, str]) -> None:
        """Write launch.json, and recipe.json where there is a recipe."""
        kept = asdict(replace(self, resume="auto", chaos=()))
        kept |= {
            "schema": SCHEMA,
            "argv": sys.argv,
            "launched": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "versions": versions(),
            "environment": kept_environment(environ),
        }
        if sections is not None:
            write_json(folder.recipe_file, sections)
        write_json(folder.launch_file, kept, mode=0o600)  # a command line may hold what is nobody's business


def read_plan(folder: JobFolder) -> LaunchPlan:
    """Return the kept launch of a job. Raises: NotFound: nothing was kept."""
    kept = read_json(folder.launch_file)
    if kept.get("schema") != SCHEMA:
        raise NotFound(
            f"job {folder.name} has no kept launch ({folder.launch_file})",
            do=f"give the command again: `ett launch --job {folder.name} RECIPE.toml`",
        )
    names = set(LaunchPlan.__dataclass_fields__)
    known = {key: value for key, value in kept.items() if key in names}
    return LaunchPlan(
        **known | {"args": tuple(kept["args"]), "chaos": (), "overrides": tuple(kept.get("overrides", ()))}
    )


def shared_launch(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a launch.json may leave the job's folder: no command line, which may hold a secret."""
    return {name: kept[name] for name in ("kind", "nproc", "versions", "environment") if name in kept}


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be written down."""
    kept = {name: environ[name] for name in sorted(environ) if ENVIRONMENT_KEPT.fullmatch(name)}
    return {name: value for name, value in kept.items() if not _SECRET.search(name)}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "kernel": os.uname().release}
    found |= {name: found_version for name in _VERSIONS if (found_version := version_of(name)) is not None}
    return found | {"ett": ett_version()}
