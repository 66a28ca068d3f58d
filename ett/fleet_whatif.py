"""What fixes would have given to many jobs: each job is played again with every subset of them, and the sums compared.

Seconds and rank-seconds are summed, by component and by team, model or owner; no share is ever averaged (R18).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ett.edits import Edit, NewInterval, Removal, Scale
from ett.event_schema import COMPONENTS, Component
from ett.lives import RecordedJob
from ett.replay import Outcome
from ett.roll_up import Weight
from ett.whatif import Bracket, Subset, assumed, played, shapley_share, subsets, total_ns_at_best

GroupBy = Literal["team", "model", "owner"]
WEIGHTS: tuple[Weight, ...] = ("job", "rank")


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetJob:
    """A job's lives, and what its submitter said of it; "" where nothing."""

    name: str
    recorded: RecordedJob
    team: str
    model: str
    owner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """Nanoseconds by component of the recorded jobs, and of the jobs with all fixes."""

    before: dict[Component, int]
    after: dict[Component, int]

    @property
    def gain_ns(self) -> int:
        return sum(self.before.values()) - sum(self.after.values())

    @property
    def delta_ett(self) -> float | None:
        before, after = ett_of(self.before), ett_of(self.after)
        return None if before is None or after is None else after - before


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetGain:
    """An edit alone: `gain_ns`, and as a share of all edits together over every order of them, `shapley_ns`."""

    edit: str
    gain_ns: int
    delta_ett: float | None
    shapley_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """The answer by one weight. `overlap_ns`: the single gains less that of all edits together."""

    sides: Sides
    gains: tuple[FleetGain, ...]
    overlap_ns: int
    bracket: Bracket


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRow:
    name: str
    num_jobs: int
    weights: dict[Weight, Sides]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetWhatIf:
    """`rows` come largest gain of rank-seconds first and sum to the whole."""

    jobs: tuple[str, ...]
    edits: tuple[str, ...]
    by: GroupBy
    weights: dict[Weight, Weighted]
    rows: tuple[FleetRow, ...]
    assumptions: tuple[str, ...]


def fleet_what_if(jobs: Iterable[FleetJob], edits: Sequence[Edit], by: GroupBy) -> FleetWhatIf:
    """Play each job again; `jobs` are read once, one at a time.

    Raises: UsageError: more than 6 edits.
    """
    whole = _Sums()
    groups: dict[str, _Sums] = {}
    names: list[str] = []
    every = subsets(len(edits))
    for job in jobs:
        names.append(job.name)
        outcomes = _played(job.recorded, edits, every)
        whole.add(outcomes)
        groups.setdefault(getattr(job, by) or f"(no {by})", _Sums()).add(outcomes)
    rows = [
        FleetRow(name=name, num_jobs=sums.num_jobs, weights={w: sums.sides(w, every[-1]) for w in WEIGHTS})
        for name, sums in groups.items()
    ]
    return FleetWhatIf(
        jobs=tuple(names),
        edits=tuple(edit.text for edit in edits),
        by=by,
        weights={weight: whole.weighted(weight, edits, every) for weight in WEIGHTS} if names else {},
        rows=tuple(sorted(rows, key=lambda r: (-r.weights["rank"].gain_ns, -r.weights["job"].gain_ns, r.name))),
        assumptions=(assumed(), "a save costs in each job what its own recorded saves did")
        if any(isinstance(edit, NewInterval) for edit in edits)
        else (assumed(),),
    )


def fleet_what_if_json(found: FleetWhatIf, scope: dict[str, Any], warnings: Sequence[str]) -> dict[str, Any]:
    """Return the `ett.whatif_fleet/v1` object."""
    data = {
        "scope": {**scope, "jobs": list(found.jobs)},
        "jobs": len(found.jobs),
        "by": found.by,
        "weights": {
            weight: _sides_json(answer.sides)
            | {
                "edits": [asdict(gain) for gain in answer.gains],
                "overlap_ns": answer.overlap_ns,
                "bracket": asdict(answer.bracket),
            }
            for weight, answer in found.weights.items()
        },
        "rows": [
            {"name": row.name, "jobs": row.num_jobs, "weights": {w: _sides_json(s) for w, s in row.weights.items()}}
            for row in found.rows
        ],
        "assumptions": list(found.assumptions),
    }
    return {"schema": "ett.whatif_fleet/v1", "data": data, "warnings": list(warnings)}


def ett_of(ns: dict[Component, int]) -> float | None:
    total_ns = sum(ns.values())
    return ns["effective"] / total_ns if total_ns else None


@dataclass(kw_only=True, slots=True)
class _Sums:
    """Nanoseconds by weight, subset of the edits and component; `best_ns`: by weight, with exposure to failures."""

    num_jobs: int = 0
    ns: dict[tuple[Weight, Subset], dict[Component, int]] = field(default_factory=dict)
    best_ns: dict[Weight, float] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0.0))

    def add(self, outcomes: dict[Subset, Outcome]) -> None:
        self.num_jobs += 1
        for subset, outcome in outcomes.items():
            for weight, ns in (("job", outcome.ns), ("rank", outcome.rank_ns)):
                total = self.ns.setdefault((weight, subset), dict.fromkeys(COMPONENTS, 0))  # type: ignore[arg-type]
                for component in COMPONENTS:
                    total[component] += ns[component]
        before, after = outcomes[()], outcomes[max(outcomes, key=len)]
        best_ns = total_ns_at_best(before, after)
        self.best_ns["job"] += best_ns
        # A second that the job is shorter gives back the ranks that it holds in the mean.
        rank_ns = sum(after.rank_ns.values())
        self.best_ns["rank"] += rank_ns * (best_ns / after.total_ns) if after.total_ns else rank_ns

    def sides(self, weight: Weight, all_edits: Subset) -> Sides:
        return Sides(before=self.ns[weight, ()], after=self.ns[weight, all_edits])

    def weighted(self, weight: Weight, edits: Sequence[Edit], every: Sequence[Subset]) -> Weighted:
        totals = {subset: sum(self.ns[weight, subset].values()) for subset in every}
        saved = {subset: totals[()] - total for subset, total in totals.items()}
        sides = self.sides(weight, every[-1])
        gains = tuple(
            FleetGain(
                edit=edit.text,
                gain_ns=saved[i,],
                delta_ett=Sides(before=sides.before, after=self.ns[weight, (i,)]).delta_ett,
                shapley_ns=float(shapley_share(saved, i, len(edits))),
            )
            for i, edit in enumerate(edits)
        )
        lower, before = sides.delta_ett, ett_of(sides.before)
        best_ns = self.best_ns[weight]
        upper = sides.after["effective"] / best_ns - before if best_ns and before is not None else lower
        ends = [end for end in (lower, upper) if end is not None]
        return Weighted(
            sides=sides,
            gains=gains,
            overlap_ns=sum(gain.gain_ns for gain in gains) - saved[every[-1]],
            bracket=Bracket(lower=min(ends, default=None), upper=max(ends, default=None)),
        )


def _played(job: RecordedJob, edits: Sequence[Edit], every: Sequence[Subset]) -> dict[Subset, Outcome]:
    """Every subset's outcome; what has no meaning for this job is not played again for it."""
    names = {(item.component, item.reason) for life in job.lives for item in life.items() if item.ns}
    stops = [life.stop for life in job.lives if life.stop is not None]
    matters = {
        i
        for i, edit in enumerate(edits)
        if isinstance(edit, NewInterval)
        or (isinstance(edit, Removal) and any(edit.covers(stop) for stop in stops))
        # A removed failure may bring a reason up that was not there; nothing else does.
        or (isinstance(edit, Scale) and (stops or any(_is_meant(edit, *name) for name in names)))
    }
    own: dict[Subset, Outcome] = {}
    for subset in every:
        reduced = tuple(i for i in subset if i in matters)
        if reduced not in own:
            own[reduced] = played(job, edits, reduced)
        own[subset] = own[reduced]
    return own


def _is_meant(edit: Scale, component: str, reason: str) -> bool:
    return edit.component == component and edit.reason in (None, reason)


def _sides_json(sides: Sides) -> dict[str, Any]:
    both = {"before": sides.before, "after": sides.after}
    return {
        **{name: {"total_ns": sum(ns.values()), "ns": ns, "ett": ett_of(ns)} for name, ns in both.items()},
        "gain_ns": sides.gain_ns,
        "delta_ett": sides.delta_ett,
    }
