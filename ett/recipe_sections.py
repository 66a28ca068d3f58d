"""The recipe sections that belong to `ett/` itself; the others stand with the folder that they configure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ett.errors import ConfigError

SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobConfig:
    model: str = "job"  # low-cardinality name of the model; job ids start with it
    team: str = ""  # modelling team, for roll-ups
    owner: str = ""  # who is asked about this job

    def __post_init__(self) -> None:
        for name in ("model", "team", "owner"):
            value = getattr(self, name)
            if value and not SLUG.fullmatch(value):
                raise ConfigError(
                    f"job.{name} is {value!r}",
                    expected="lower-case letters, digits, '.', '_' or '-', at most 63, starting with a letter or digit",
                )
        if not self.model:
            raise ConfigError("job.model is empty", expected="a short name such as 'criteo-dlrm'")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    nproc: int = 1  # worker processes on this host

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise ConfigError(f"launch.nproc is {self.nproc}", expected="at least 1 worker process")
