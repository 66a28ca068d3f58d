"""The site file `ett.toml`, as reports need it: who owns which lost seconds, and what share each component may take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett.errors import ConfigError
from ett.event_schema import COMPONENTS, Component, is_number
from ett.section import nearest
from ett.toml_file import read_toml

_OWNER = re.compile(r"[\w][\w .@/+-]{0,62}")
OBJECTIVES = (*(c for c in COMPONENTS if c != "effective"), "ett")


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Owners by component, by "component.reason", by reason, or by an interruption's reason or class; budgets by
    component as shares of 1, and the objective `ett`. Both are empty where there is no site file."""

    owners: Mapping[str, str] = field(default_factory=dict)
    objectives: Mapping[str, float] = field(default_factory=dict)

    def owner_of_time(self, component: Component, reason: str, job_owner: str = "") -> str:
        """Return who is asked about seconds of a component: the second level wins over the first; "" where nobody is.

        The job's own owner stands for its effective time.
        """
        known = (self.owners.get(name) for name in (f"{component}.{reason}", reason, component))
        return next((owner for owner in known if owner), job_owner if component == "effective" else "")

    def owner_of_stop(self, reason: str, cause_class: str, job_owner: str = "") -> str:
        """Return who is asked about an interruption: its reason first, then its class.

        Without either: the job's own owner for class user, the owner of scheduling for a preemption.
        """
        names = (reason, cause_class, *(("scheduling",) if cause_class == "preempted" else ()))
        known = (self.owners.get(name) for name in names)
        return next((owner for owner in known if owner), job_owner if cause_class == "user" else "")

    def budget(self, component: str) -> float | None:
        return self.objectives.get(component)


def load_site(path: Path | None) -> Site:
    """Return `[owners]` and `[slo]` of the site file; an empty one where there is none.

    Raises: as `read_toml`, and ConfigError (names the line): a value has no meaning here.
    """
    if path is None:
        return Site()
    tree, lines = read_toml(path, "site file")
    owners = dict(_leaves(tree.get("owners", {})))
    for name, owner in owners.items():
        if not isinstance(owner, str) or not _OWNER.fullmatch(owner):
            place = _place(path, lines, f"owners.{name}", "owners")
            raise ConfigError(f"{place}: owners.{name} is {owner!r}", expected="a team's short name in quotes")
    objectives = dict(_leaves(tree.get("slo", {})))
    for name, share in objectives.items():
        place = _place(path, lines, f"slo.{name}", "slo")
        if name not in OBJECTIVES:
            raise ConfigError(f"{place}: unknown objective slo.{name}", expected=nearest(name, OBJECTIVES), code="F002")
        if not is_number(share) or not 0 < share <= 1:
            raise ConfigError(f"{place}: slo.{name} is {share!r}", expected="a share above 0, at most 1, such as 0.03")
    return Site(owners=owners, objectives=objectives)


def site_tables(path: Path) -> dict[str, dict[str, tuple[Any, str]]]:
    """Return what a site file says of a fleet, checked: by section and key, the value and "file:line".

    Raises: as `load_site`.
    """
    load_site(path)
    tree, lines = read_toml(path, "site file")
    found = {}
    for section in ("slo", "owners", "teams", "store"):
        leaves = _leaves(tree.get(section, {}))
        if leaves:
            found[section] = {
                name: (value, _place(path, lines, f"{section}.{name}", section)) for name, value in leaves
            }
    return found


def _leaves(table: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """`initialization.restore = …` and `"initialization.restore" = …` mean the same."""
    if not isinstance(table, dict):
        return [(prefix.rstrip("."), table)]
    return [leaf for key, value in table.items() for leaf in _leaves(value, f"{prefix}{key}.")] if table else []


def _place(path: Path, lines: Mapping[str, int], name: str, section: str) -> str:
    return f"{path}:{lines.get(name, lines.get(section, 1))}"
