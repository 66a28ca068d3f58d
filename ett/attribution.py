"""Who pays for a second: *as spent* by component, reason and owner, *as caused* by the interruption that made it so.

As caused, an interruption is charged with the work that it lost, the teardown that it forced, and the start-up paid
again until the next new data; what is left stays with the component. Both views hold every nanosecond exactly once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ett.accounting import JobAccount
from ett.event_schema import COMPONENTS, Component
from ett.interval_set import Interval, measure, without
from ett.rank_timeline import Piece
from ett.replay_payers import ReplayPayers
from ett.report import world_of
from ett.site import Site
from ett.stops import CauseClass, FirstNewStep, Stop, find_stops

Part = Literal["lost", "teardown", "again"]
_PAID_AGAIN = ("scheduling", "initialization", "compilation")


class Charge(NamedTuple):
    """[begin_ns, end_ns) of one component and reason; `payer` indexes the stops, None: nobody but the component."""

    begin_ns: int
    end_ns: int
    component: Component
    reason: str
    payer: int | None
    part: Part | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SpentRow:
    """Seconds by component and second-level reason; `rank_ns` are the same, each times the ranks that were held."""

    component: Component
    reason: str
    owner: str
    ns: int
    rank_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CausedRow:
    """Seconds by cause: all interruptions of one class and reason, or what stays with a component.

    lost + teardown + again == ns for an interruption; all three are 0 for a component, whose `count` is 0 too.
    """

    cause: Literal["interruption", "component"]
    cause_class: CauseClass | None
    component: Component | None
    reason: str
    owner: str
    count: int
    ns: int
    rank_ns: int
    lost_ns: int = 0
    teardown_ns: int = 0
    again_ns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """Both views of one account over the same time: each sums to `total_ns`, and by ranks to `total_rank_ns`."""

    total_ns: int
    total_rank_ns: int
    as_spent: tuple[SpentRow, ...]
    as_caused: tuple[CausedRow, ...]


def attribute(
    account: JobAccount, site: Site, window: Interval | None = None, exclude: Iterable[Interval] = ()
) -> Attribution:
    """Return who spent and who caused every nanosecond of `window` (the whole job where None) less `exclude`."""
    kept = kept_time(account, window, exclude)
    stops = find_stops(account)
    held = RanksHeld(account)
    spent: Counter[tuple[Component, str]] = Counter()
    spent_ranks: Counter[tuple[Component, str]] = Counter()
    left: Counter[tuple[Component, str]] = Counter()
    left_ranks: Counter[tuple[Component, str]] = Counter()
    causes: dict[tuple[CauseClass, str], _Cause] = {}
    for charge in charges(account, stops):
        ns = measure(kept, charge.begin_ns, charge.end_ns)
        if not ns:
            continue
        key = (charge.component, charge.reason)
        rank_ns = ns * held.ranks(charge.component, charge.begin_ns)
        spent[key] += ns
        spent_ranks[key] += rank_ns
        if charge.payer is None or charge.part is None:
            left[key] += ns
            left_ranks[key] += rank_ns
        else:
            stop = stops[charge.payer]
            cause = causes.setdefault((stop.cause_class, stop.reason), _Cause())
            cause.payers.add(charge.payer)
            cause.parts[charge.part] += ns
            cause.rank_ns += rank_ns
    owner = _job_owner(account)
    return Attribution(
        total_ns=sum(spent.values()),
        total_rank_ns=sum(spent_ranks.values()),
        as_spent=tuple(
            SpentRow(
                component=component,
                reason=reason,
                owner=site.owner_of_time(component, reason, owner),
                ns=ns,
                rank_ns=spent_ranks[component, reason],
            )
            for (component, reason), ns in _largest_first(spent)
        ),
        as_caused=(*_interruption_rows(causes, site, owner), *_component_rows(left, left_ranks, site, owner)),
    )


def attribution_json(views: Attribution) -> dict[str, list[dict[str, Any]]]:
    """Return the two lists that `ett report --json` adds to its data: exact nanoseconds, "" where nobody owns a row."""
    return {
        "as_spent": [asdict(row) for row in views.as_spent],
        "as_caused": [asdict(row) for row in views.as_caused],
    }


def kept_time(account: JobAccount, window: Interval | None, exclude: Iterable[Interval]) -> list[Interval]:
    """R17: what window and exclusions leave of the job, sorted and disjoint."""
    whole = (account.window.start_ns, account.window.end_ns)
    asked = whole if window is None else (max(whole[0], window[0]), min(whole[1], window[1]))
    return without(asked, [*exclude, *account.exclusions])


def charges(account: JobAccount, stops: Sequence[Stop]) -> Iterator[Charge]:
    """Yield the whole partition once, each part with the stop that pays for it; in order but for a few held pieces."""
    last_attempt = account.timelines[-1].attempt.number if account.timelines else 0
    replays = ReplayPayers()
    held: list[Piece] = []  # loop time without a step: if a fault is what follows, the fault cost it
    life, first_new = 0, FirstNewStep()
    for piece in account.pieces:
        while life < len(stops) and stops[life].at_ns <= piece.begin_ns:
            was_inprocess = stops[life].kind == "inprocess"
            yield from (_charge(p, life, "lost") if was_inprocess else _charge(p) for p in held)
            held.clear()
            replays.end_life(life)
            life, first_new = life + 1, FirstNewStep()
        upcoming = stops[life] if life < len(stops) else None
        if piece.component == "wasted" and piece.reason == "untracked" and upcoming is not None:
            held.append(piece)
            continue
        yield from map(_charge, held)
        held.clear()
        if piece.component == "wasted" and piece.reason == "replay":
            for begin_ns, end_ns, payer in replays.split(piece, life):
                part: Part | None = None if payer is None else "lost"
                yield Charge(begin_ns, end_ns, piece.component, piece.reason, payer, part)
        else:
            yield _charge(piece, *_payer(piece, life, upcoming, first_new.is_done, last_attempt))
        if piece.step is not None:
            replays.learn(piece.step)
            first_new.see(piece)
    yield from map(_charge, held)


def _charge(piece: Piece, payer: int | None = None, part: Part | None = None) -> Charge:
    return Charge(piece.begin_ns, piece.end_ns, piece.component, piece.reason, payer, part)


def _payer(
    piece: Piece, life: int, upcoming: Stop | None, has_learned: bool, last_attempt: int
) -> tuple[int | None, Part | None]:
    """The stop that pays for a piece which is no replay: the one ahead for what it destroys, else the one before."""
    if piece.component == "effective":
        return None, None
    if upcoming is not None:
        if piece.component == "wasted" and piece.reason in ("in_flight", "unsaved_tail"):
            return life, "lost"
        if piece.begin_ns >= upcoming.fatal_from_ns:
            return life, "teardown"
        # After the train_end of the last attempt the shutdown was planned, whatever became of it.
        if piece.component == "shutdown" and not (piece.rule == "R12" and upcoming.attempt == last_attempt):
            return life, "teardown"
    if life and not has_learned and piece.component in _PAID_AGAIN and piece.reason != "job_end":
        return life - 1, "again"
    return None, None


@dataclass(kw_only=True, slots=True)
class _Cause:
    payers: set[int] = field(default_factory=set)
    parts: Counter[Part] = field(default_factory=Counter)
    rank_ns: int = 0


class RanksHeld:
    """R18: how many ranks were held at an instant; scheduling holds none."""

    def __init__(self, account: JobAccount) -> None:
        self._ends: list[int] = []
        self._worlds: list[int] = []
        for timeline in account.timelines:
            self._ends.append(max(timeline.attempt.cut_ns, self._ends[-1] if self._ends else 0))
            self._worlds.append(world_of(timeline))

    def ranks(self, component: Component, time_ns: int) -> int:
        if component == "scheduling" or not self._ends:
            return 0
        return self._worlds[min(bisect_right(self._ends, time_ns), len(self._ends) - 1)]


def _interruption_rows(causes: dict[tuple[CauseClass, str], _Cause], site: Site, job_owner: str) -> Iterator[CausedRow]:
    for (cause_class, reason), cause in sorted(causes.items(), key=lambda item: (-item[1].parts.total(), item[0])):
        yield CausedRow(
            cause="interruption",
            cause_class=cause_class,
            component=None,
            reason=reason,
            owner=site.owner_of_stop(reason, cause_class, job_owner),
            count=len(cause.payers),
            ns=cause.parts.total(),
            rank_ns=cause.rank_ns,
            lost_ns=cause.parts["lost"],
            teardown_ns=cause.parts["teardown"],
            again_ns=cause.parts["again"],
        )


def _component_rows(
    left: Counter[tuple[Component, str]], ranks: Counter[tuple[Component, str]], site: Site, job_owner: str
) -> Iterator[CausedRow]:
    for (component, reason), ns in _largest_first(left):
        yield CausedRow(
            cause="component",
            cause_class=None,
            component=component,
            reason=reason,
            owner=site.owner_of_time(component, reason, job_owner),
            count=0,
            ns=ns,
            rank_ns=ranks[component, reason],
        )


def _largest_first(sums: Counter[tuple[Component, str]]) -> list[tuple[tuple[Component, str], int]]:
    return sorted(sums.items(), key=lambda item: (COMPONENTS.index(item[0][0]), -item[1], item[0][1]))


def _job_owner(account: JobAccount) -> str:
    submitted = account.window.submitted
    return str(submitted.data.get("owner", "")) if submitted else ""
