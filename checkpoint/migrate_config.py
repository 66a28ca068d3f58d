"""What a model takes over of another job's commit, and what it does not: the recipe's [checkpoint.migrate]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ett.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrateConfig:
    """Names of tables are those of `ett checkpoint show`, such as "embedding_bags.t_C1"; only `ett launch --from`."""

    # "continue": at the commit's place in the data, which must be the same data; "restart": at step and sample 0.
    position: Literal["continue", "restart"] = "continue"
    add: tuple[str, ...] = ()  # tables of this model that begin anew
    drop: tuple[str, ...] = ()  # tables of the commit that are left behind
    rename: dict[str, str] = field(default_factory=dict)  # of the commit -> of this model
    # Tables of this model with other widths or a smaller num_embeddings: a row loses its last elements or gets zeros.
    resize: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()  # dense tensors that begin anew, with their optimizer state: names, or "top.*"

    def __post_init__(self) -> None:
        for name in ("add", "drop", "resize"):
            listed = getattr(self, name)
            if len(set(listed)) < len(listed):
                raise ConfigError(f"checkpoint.migrate.{name} names a table twice", expected="each table once")
        targets = list(self.rename.values())
        if len(set(targets)) < len(targets):
            raise ConfigError("checkpoint.migrate.rename gives two tables one name", expected="one name a table")
        for name in self.drop:
            if name in self.rename:
                raise ConfigError(
                    f"checkpoint.migrate drops and renames table {name}", expected="one or the other", code="F008"
                )
