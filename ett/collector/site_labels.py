"""Which values the labels `team` and `model` may take: those of the site file, or the first so many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett.errors import ConfigError
from ett.toml_file import read_toml

OTHER = "other"
NONE = "none"  # a job that names no team: an empty label would be no label
MAX_TEAMS, MAX_MODELS = 64, 500


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteLabels:
    """`models` by team, from the site file's [teams]; empty where it has none. `cluster` is that of every job here."""

    cluster: str = "default"
    models: Mapping[str, frozenset[str]] = field(default_factory=dict)


class LabelGate:
    """Lets a bounded set of label values through; any other becomes `other`."""

    def __init__(self, site: SiteLabels) -> None:
        self._site = site
        self._teams: set[str] = set(site.models)
        self._models: set[str] = {model for models in site.models.values() for model in models}
        self._are_models_listed = bool(self._models)
        self.num_refused = {"team": 0, "model": 0}  # jobs whose value became `other`

    @property
    def cluster(self) -> str:
        return self._site.cluster

    def admit(self, team: str, model: str) -> tuple[str, str]:
        """Return the labels of a job; without a list, the first values that come are let in up to a limit."""
        team, model = team or NONE, model or NONE
        if not self._site.models and len(self._teams) < MAX_TEAMS and team != NONE:
            self._teams.add(team)
        if not self._are_models_listed and len(self._models) < MAX_MODELS and model != NONE:
            self._models.add(model)
        if team not in self._teams and team != NONE:
            self.num_refused["team"] += 1
            team = OTHER
        if model not in self._models and model != NONE:
            self.num_refused["model"] += 1
            model = OTHER
        return team, model


def read_site(path: Path | None, cluster: str) -> tuple[SiteLabels, str]:
    """Return the labels of the site file's `[teams]`, and the URL of its `[store]`; "" where there is none.

    `[teams]` is `ads = ["ctr-main", "ctr-small"]`: a team and its models; an empty list allows any model.
    Raises: as `read_toml`, and ConfigError: a value of another form.
    """
    if path is None:
        return SiteLabels(cluster=cluster), ""
    tree, _ = read_toml(path, "site file")
    teams = _table(tree, "teams", path)
    models: dict[str, frozenset[str]] = {}
    for team, names in teams.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{path}: teams.{team} is {names!r}", expected='a list of models, such as ["ctr-main"]')
        models[team] = frozenset(names)
    url = _table(tree, "store", path).get("url", "")
    if not isinstance(url, str):
        raise ConfigError(f"{path}: store.url is {url!r}", expected="a path or postgresql://… in quotes")
    return SiteLabels(cluster=cluster, models=models), url


def _table(tree: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    table = tree.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {name} is {table!r}", expected=f"a table [{name}]")
    return table
