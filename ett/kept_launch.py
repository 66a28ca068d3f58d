"""The launch that a job's folder keeps: what another launch of the same name must agree with, and may not spoil."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.errors import Conflict, CorruptState
from ett.job_folder import JobFolder, read_json
from ett.launch_plan import LaunchPlan
from ett.store_uri import shown_uri


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptLaunch:
    """launch.json and recipe.json of a job as they were before this launch; both empty for a new job."""

    folder: JobFolder
    launch: bytes
    recipe: bytes

    @classmethod
    def of(cls, folder: JobFolder) -> KeptLaunch:
        return cls(folder=folder, launch=_bytes(folder.launch_file), recipe=_bytes(folder.recipe_file))

    def check(self, plan: LaunchPlan, sections: Mapping[str, Any] | None) -> None:
        """Refuse what cannot be another life of this job.

        Raises: Conflict: it ran another program. CorruptState: the kept recipe is needed and damaged.
        """
        kept = read_json(self.folder.launch_file)
        before, now = (kept.get("kind"), kept.get("target")), (plan.kind, plan.target)
        is_same = before == now or (plan.kind == "recipe" and before[0] == "recipe")
        if kept and not is_same:
            raise Conflict(
                f"job {self.folder.name} runs {before[1]} ({before[0]}), not {now[1]} ({now[0]})",
                expected="the same program in every life of a job: its steps and checkpoints are that program's",
                do=f"choose another --job, or resume it with `ett launch --job {self.folder.name}`",
            )
        if plan.kind == "recipe" and sections is None and not read_json(self.folder.recipe_file):
            raise CorruptState(
                f"{self.folder.recipe_file} is missing or damaged",
                expected="the resolved recipe of this job",
                do=f"give the recipe again: `ett launch --job {self.folder.name} RECIPE.toml`",
            )

    def drift(self, sections: Mapping[str, Any] | None) -> list[str]:
        """Return "key: before -> now" for each recipe key whose value this launch changes."""
        kept = read_json(self.folder.recipe_file)
        if not kept or sections is None:
            return []
        before, now = dict(_leaves(kept)), dict(_leaves(sections))
        changed = [key for key in sorted(now) if before.get(key) != now[key]]
        return [f"{key}: {shown_uri(str(before.get(key)))} -> {shown_uri(str(now[key]))}" for key in changed]

    def put_back(self) -> bool:
        """Undo what this launch wrote over, and return whether there was something to put back."""
        for path, content in ((self.folder.recipe_file, self.recipe), (self.folder.launch_file, self.launch)):
            if content:
                unfinished = path.with_suffix(".tmp")
                unfinished.touch(mode=0o600)
                unfinished.write_bytes(content)
                unfinished.replace(path)
        return bool(self.launch)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
