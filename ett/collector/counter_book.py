"""The fleet's counters: one page a job in the store's meta, their sums in memory; a restart continues where it was.

A page is kept before its change is shown, and the sums are those of the pages: nothing is counted twice whatever is
killed when.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ett import metric_names as names
from ett.clock import Clock, SystemClock
from ett.collector.book_page import BookPage, Labels, Series, read_page
from ett.collector.job_figures import JobFigures, ModelState, job_figures
from ett.collector.site_labels import LabelGate
from ett.errors import CorruptState
from ett.site import Site
from ett.store import Store

log = logging.getLogger(__name__)

OPEN_INTERVAL_S = 15.0  # a running job without new records is looked at this often: time alone changes it
OWNER_WAIT_S = 60.0  # for the record that says whose job it is
COST_FACTOR = 20.0  # a job whose account takes 1 s is not counted again for 20 s
_PREFIX = "collector/page/"


@dataclass(kw_only=True, slots=True)
class _Known:
    """What is remembered of a job; its page is in memory only while it is open."""

    generation: int
    state: str
    is_open: bool
    labels: Labels
    owner: tuple[str, str]  # team and model as the job says them; as labels where only the page is known
    due_s: float = 0.0  # not counted again before this, whatever comes
    look_s: float = 0.0  # an open one is counted again after this, even if nothing comes
    page: BookPage | None = None
    running: ModelState | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetView:
    """The counters at one moment: every figure an integer, times in nanoseconds."""

    counters: Mapping[Series, int]
    histograms: Mapping[Series, list[int]]
    jobs: Mapping[tuple[str, str], int]  # (team, state)
    models: Mapping[tuple[str, str], list[ModelState]]  # (team, model) of running jobs


class CounterBook:
    """Follows the store. One thread refreshes; any may look at the figures or note that a job has new lines."""

    def __init__(self, store: Store, gate: LabelGate, site: Site, clock: Clock | None = None) -> None:
        self._store, self._gate, self._site, self._clock = store, gate, site, clock or SystemClock()
        self._is_stopped = False
        self._lock = threading.Lock()  # of what is below
        self._counters: Counter[Series] = Counter()
        self._histograms: dict[Series, list[int]] = {}
        self._known: dict[str, _Known] = {}
        self._noted: dict[str, float] = {}  # jobs with new lines -> since when
        self._first_seen: dict[str, float] = {}  # jobs that nobody has submitted yet

    @property
    def cluster(self) -> str:
        return self._gate.cluster

    @property
    def num_refused(self) -> dict[str, int]:
        return self._gate.num_refused

    def load(self) -> None:
        """Sum up the pages that were kept."""
        for job in self._store.generations():
            page = read_page(self._store.get_meta(_PREFIX + job))
            if page.generation < 0:
                continue
            self._add(BookPage(), page)
            self._known[job] = _Known(
                generation=page.generation,
                state=page.state,
                is_open=page.is_open,
                labels=self._labels(page.team, page.model),
                owner=(page.team, page.model),
                look_s=0.0 if page.is_open else math.inf,
            )

    def note(self, job: str) -> None:
        """Take note that the job got new lines."""
        with self._lock:
            self._noted.setdefault(job, time.monotonic())

    def refresh(self) -> None:
        """Count what is new; from one thread at a time. Ends early after `stop`, between two jobs.

        Raises: Conflict, Unreachable: the store did not take a page; nothing was counted that it does not have.
        """
        for job, generation in self._due():
            if self._is_stopped:
                return
            self._count(job, generation)

    def stop(self) -> None:
        self._is_stopped = True

    def view(self) -> FleetView:
        with self._lock:
            jobs = Counter((known.labels.team, known.state) for known in self._known.values())
            models: dict[tuple[str, str], list[ModelState]] = {}
            for known in self._known.values():
                if known.running is not None:
                    models.setdefault((known.labels.team, known.labels.model), []).append(known.running)
            return FleetView(
                counters=dict(self._counters),
                histograms={series: list(counts) for series, counts in self._histograms.items()},
                jobs=jobs,
                models=models,
            )

    def running_jobs(self, most: int) -> dict[str, dict[str, int]]:
        """Return the rank-nanoseconds by component of the running jobs with most ranks, as they were published."""
        with self._lock:
            known = [
                (-one.running.ranks, job, one.page)
                for job, one in self._known.items()
                if one.running is not None and one.page is not None
            ]
        metric = names.COMPONENT_RANK_TIME.prometheus
        return {
            job: {key[1]: value for key, value in page.amounts.items() if key[0] == metric}
            for _, job, page in sorted(known, key=lambda k: k[:2])[:most]
        }

    @property
    def site(self) -> Site:
        return self._site

    def lag_s(self) -> float:
        """Return how long the oldest lines wait that no counter has yet."""
        with self._lock:
            oldest_s = min(self._noted.values(), default=None)
        return 0.0 if oldest_s is None else time.monotonic() - oldest_s

    def _due(self) -> list[tuple[str, int]]:
        """Jobs whose page is older than their records, or than the time that changes it; longest waiting first."""
        now_s = time.monotonic()
        generations = self._store.generations()
        with self._lock:
            noted = dict(self._noted)
        found = []
        for job, generation in generations.items():
            known = self._known.get(job)
            if known is None or now_s >= (known.due_s if known.generation != generation else known.look_s):
                found.append((noted.get(job, now_s), job, generation))
        return [(job, generation) for _, job, generation in sorted(found)]

    def _count(self, job: str, generation: int) -> None:
        begun_s = time.monotonic()
        known = self._known.get(job)
        before = known.page if known is not None and known.page is not None else self._read(job)
        try:
            with self._store.live_account(job, self._clock.wall_ns()) as found:
                figures = job_figures(found, self._site)
        except CorruptState as err:
            log.warning("job %s is not counted: %s", job, err)
            figures = JobFigures(is_submitted=True, state=before.state, is_open=False, amounts=before.amounts)
        if not figures.is_submitted and begun_s < self._first_seen.setdefault(job, begun_s) + OWNER_WAIT_S:
            return  # its ranks' lines came first: booked now, they would be nobody's
        self._first_seen.pop(job, None)
        owner = (figures.team, figures.model)
        # A value is judged once; the page of a job that has one already keeps it.
        labels = known.labels if known is not None and known.owner == owner else self._labels(*owner)
        page = before.turned(figures, labels, generation)
        if page != before:
            self._store.set_meta(_PREFIX + job, page.text())
        took_s = time.monotonic() - begun_s
        with self._lock:
            self._add(before, page)
            self._noted.pop(job, None)
            self._known[job] = _Known(
                generation=generation,
                state=page.state,
                is_open=page.is_open,
                labels=labels,
                owner=owner,
                due_s=begun_s + COST_FACTOR * took_s,
                look_s=begun_s + max(OPEN_INTERVAL_S, COST_FACTOR * took_s) if page.is_open else math.inf,
                page=page if page.is_open else None,
                running=figures.running,
            )

    def _read(self, job: str) -> BookPage:
        return read_page(self._store.get_meta(_PREFIX + job))

    def _labels(self, team: str, model: str) -> Labels:
        team, model = self._gate.admit(team, model)
        return Labels(cluster=self._gate.cluster, team=team, model=model)

    def _add(self, before: BookPage, after: BookPage) -> None:
        for series, value in after.booked.items():
            self._counters[series] += value - before.booked.get(series, 0)
        for series, counts in after.points.items():
            old = before.points.get(series, [0] * len(counts))
            total = self._histograms.setdefault(series, [0] * len(counts))
            for index, (new_count, old_count) in enumerate(zip(counts, old, strict=True)):
                total[index] += new_count - old_count
