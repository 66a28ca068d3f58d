"""What a recipe may say of publishing: the section [publish]; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from ett.errors import ConfigError
from ett.store_uri import check_uri


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishConfig:
    # A folder, seen from where the job is launched, or URL of publications. Empty: the end of a job publishes nothing.
    to: str = ""
    tables: tuple[str, ...] = ()  # by name; none: all
    quantise: int = 0  # weights in 8 or 4 bits an element, row by row; 0: as they are
    min_updates: int = 0  # rows that were updated less often are left out; 0: none
    max_age: int = 0  # rows not updated in the table's last so many updates are left out; 0: none
    delta: bool = False  # only what changed since the last publication, where that is known
    attempts: int = 5  # while a store does not answer

    def __post_init__(self) -> None:
        check_uri(self.to, "publish.to")
        if self.quantise not in (0, 8, 4):
            raise ConfigError(f"publish.quantise is {self.quantise}", expected="8 or 4 bits, or 0 for none")
        for name, least in (("min_updates", 0), ("max_age", 0), ("attempts", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"publish.{name} is {getattr(self, name)}", expected=f"at least {least}")
