"""What a scrape looks like: bounded, documented, accepted by Prometheus' own checker, and the same after a restart."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from test_accounting_properties import EPOCH_NS, NS
from test_counter_book import TWO_LIVES

from ett import metric_names as names
from ett.collector.book_page import BookPage, Labels
from ett.collector.counter_book import CounterBook, FleetView
from ett.collector.exposition import FleetCollector, JobsCollector, families, render
from ett.collector.job_figures import PHASES, JobFigures, Key, ModelState
from ett.collector.job_moments import Moment
from ett.collector.own_figures import OwnFigures
from ett.collector.site_labels import MAX_MODELS, LabelGate, SiteLabels, read_site
from ett.errors import ConfigError
from ett.event_line import encode_line
from ett.event_schema import COMPONENTS
from ett.site import Site
from ett.store import Store, open_store

CaseLog = Callable[[dict[str, Any]], Any]
SITE = Site(
    owners={"compilation": "compiler", "ett": "training-infra"},
    objectives={"ett": 0.9, "compilation": 0.015, "wasted": 0.025},
)
NUM_MODELS, NUM_TEAMS, NUM_CLUSTERS = 500, 12, 4
STATES = ("queued", "running", "suspended", "succeeded", "failed", "cancelled", "lost")


class FixedClock:
    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def wall_ns(self) -> int:
        return EPOCH_NS + self.seconds * NS

    def mono_ns(self) -> int:
        return self.seconds * NS


def full_figures(value: int) -> JobFigures:
    """A job that has something of everything that its metrics can show."""
    amounts: dict[Key, int] = {}
    for component in names.METRIC_COMPONENTS:
        amounts[names.COMPONENT_RANK_TIME.prometheus, component] = value
        amounts[names.COMPONENT_JOB_TIME.prometheus, component] = value
    for reason in names.RESTART_REASONS.values():
        amounts[names.RESTARTS.prometheus, reason] = value
        amounts[names.RESTART_COST.prometheus, reason, "runtime"] = value
    for phase in PHASES:
        amounts[names.SUBCOMPONENT_RANK_TIME.prometheus, "wasted", phase] = value
    amounts |= {
        (metric.prometheus,): value
        for metric in (names.WALL_RANK_TIME, names.EXAMPLES, names.EXAMPLES_REDONE, names.RECOMPILES)
    }
    moments = {
        f"{metric.prometheus} {label}": [Moment(metric.prometheus, (label,), value)]
        for metric, values in (
            (names.ATTEMPT_COMPONENT_DURATION, [c for c in COMPONENTS if c != "effective"]),
            (names.RECOVERY_DURATION, names.RECOVERY_TIERS),
            (names.CHECKPOINT_SAVE_DURATION, names.CHECKPOINT_PHASES),
            (names.ATTEMPTS_FINISHED, ("completed", "failed", "preempted", "suspended", "lost")),
        )
        for label in values
    }
    for metric in (names.HANG_DETECTION_DURATION, names.STRAGGLER_RATIO):
        moments[metric.prometheus] = [Moment(metric.prometheus, (), value)]
    return JobFigures(amounts=amounts, moments=moments)


def worst_fleet() -> FleetView:
    """500 models of 12 teams in one cluster; every one of them has been revised as well."""
    counters: dict[tuple[str, ...], int] = {}
    histograms: dict[tuple[str, ...], list[int]] = {}
    models: dict[tuple[str, str], list[ModelState]] = {}
    for number in range(NUM_MODELS):
        labels = Labels(cluster="a", team=f"team-{number % NUM_TEAMS}", model=f"model-{number}")
        page = BookPage().turned(full_figures(9 * NS), labels, 1).turned(full_figures(8 * NS), labels, 2)
        for series, value in page.booked.items():
            counters[series] = counters.get(series, 0) + value
        histograms |= page.points
        models[labels.team, labels.model] = [ModelState(9 * NS, NS, NS)]
    jobs = {(f"team-{team}", state): 7 for team in range(NUM_TEAMS) for state in STATES}
    return FleetView(counters=counters, histograms=histograms, jobs=jobs, models=models)


@pytest.mark.slow
def test_a_fleet_of_500_models_stays_under_the_bound_of_series() -> None:
    num_series = sum(len(family.samples) for family in families(worst_fleet(), "a", SITE))
    assert 10_000 < num_series < 70_000 / NUM_CLUSTERS


@pytest.mark.slow
def test_no_label_names_a_job_or_anything_else_without_a_bound() -> None:
    labels = {
        label for family in families(worst_fleet(), "a", SITE) for sample in family.samples for label in sample.labels
    }
    assert labels <= {
        "cluster",
        "team",
        "model",
        "component",
        "phase",
        "reason",
        "owner",
        "outcome",
        "tier",
        "state",
        "slo",
        "le",
    }


@pytest.mark.slow
def test_every_metric_of_the_table_is_there_with_its_help_and_type() -> None:
    kinds = {"up_down_counter": "gauge"}
    found = {family.name: (family.type, family.documentation) for family in families(worst_fleet(), "a", SITE)}
    expected = {
        metric.prometheus.removesuffix("_total"): (kinds.get(metric.instrument, metric.instrument), metric.help)
        for metric in names.METRICS
    }
    assert found == expected


def test_an_objective_of_the_site_file_is_shown_with_its_owner() -> None:
    (family,) = (f for f in families(worst_fleet(), "a", SITE) if f.name == names.SLO_OBJECTIVE.prometheus)
    found = {s.labels["slo"]: (s.labels["component"], s.labels["owner"], s.value) for s in family.samples}
    assert found == {
        "ett-compilation-share": ("compilation", "compiler", 0.015),
        "ett-effective-share": ("effective", "training-infra", 0.9),
        "ett-wasted-share": ("wasted", "none", 0.025),
    }


def registry_of(view: FleetView) -> CollectorRegistry:
    class Fixed(FleetCollector):
        def collect(self) -> Any:
            return families(view, "a", SITE)

    figures = OwnFigures()
    figures.registry.register(Fixed(None))  # type: ignore[arg-type]
    return figures.registry


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_prometheus_own_checker_has_nothing_to_say() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=generate_latest(registry_of(worst_fleet())),
        capture_output=True,
        check=False,
    )
    # Its one rule against unit prefixes in names knows no histogram of seconds; it says nothing else.
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")


def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    registry = registry_of(FleetView(counters={}, histograms={}, jobs={}, models={}))
    plain, plain_type = render(registry, "")
    asked, asked_type = render(registry, "application/openmetrics-text; version=1.0.0")
    assert plain_type.startswith("text/plain")
    assert asked_type.startswith("application/openmetrics-text")
    assert asked.endswith(b"# EOF\n")
    assert list(text_string_to_metric_families(plain.decode()))


def filled_store(path: Path, case_log: CaseLog, job: str = "j") -> Store:
    store = open_store(path)
    for name, records in case_log(TWO_LIVES).files().items():
        store.ingest(job, name, [encode_line(record | {"job": job}) for record in records])
    return store


def book_of(store: Store, seconds: int = 500, **site: Any) -> CounterBook:
    return CounterBook(store, LabelGate(SiteLabels(cluster="a", **site)), Site(), FixedClock(seconds))


def test_a_restarted_collector_continues_where_the_counters_were(tmp_path: Path, case_log: CaseLog) -> None:
    with filled_store(tmp_path / "ett.db", case_log) as store:
        book = book_of(store)
        book.refresh()
        before = book.view()
        again = book_of(store)
        again.load()
        assert (again.view().counters, again.view().histograms, again.view().jobs) == (
            before.counters, before.histograms, before.jobs,
        )  # fmt: skip
        again.refresh()
        assert again.view().counters == before.counters
        assert before.counters


def test_a_finished_job_is_not_computed_again(
    tmp_path: Path, case_log: CaseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled_store(tmp_path / "ett.db", case_log) as store:
        book = book_of(store)
        book.refresh()
        monkeypatch.setattr(store, "event_log", lambda job: pytest.fail("it was read again"))
        book.refresh()
        again = book_of(store)
        again.load()
        again.refresh()


def test_the_page_of_jobs_has_the_running_ones_and_no_more_than_were_asked_for(
    tmp_path: Path, case_log: CaseLog
) -> None:
    running = TWO_LIVES["events"][:9]  # to the end of the second step
    with filled_store(tmp_path / "ett.db", case_log) as store:
        for job, world in (("small", 2), ("large", 64), ("middle", 8)):
            events = [e | ({"world": world} if e["ev"] == "attempt_started" else {}) for e in running]
            for name, records in case_log({"id": job, "events": events}).files().items():
                store.ingest(job, name, [encode_line(record | {"job": job}) for record in records])
        book = book_of(store, seconds=60)
        book.refresh()
        assert list(book.running_jobs(2)) == ["large", "middle"]
        page = generate_latest(JobsOnly(book).registry).decode()
        (family,) = text_string_to_metric_families(page)
        shown = {(s.labels["job"], s.labels["component"]): s.value for s in family.samples}
        assert {job for job, _ in shown} == {"small", "large", "middle"}  # not the one that ended
        assert {len(s.labels) for s in family.samples} == {3}
        assert shown["large", "training"] == pytest.approx(8 * shown["middle", "training"])


class JobsOnly:
    def __init__(self, book: CounterBook) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(JobsCollector(book))


def test_jobs_add_up_in_the_fleets_counters(tmp_path: Path, case_log: CaseLog) -> None:
    with filled_store(tmp_path / "ett.db", case_log) as store:
        book = book_of(store)
        book.refresh()
        one = book.view()
        filled_store(tmp_path / "ett.db", case_log, "k").close()
        book.refresh()
        assert book.view().counters == {series: 2 * value for series, value in one.counters.items()}
        assert dict(book.view().jobs) == {("none", "failed"): 2}


def test_a_job_whose_log_cannot_be_read_stops_no_other(tmp_path: Path, case_log: CaseLog) -> None:
    with filled_store(tmp_path / "ett.db", case_log) as store:
        store.ingest("bad", "1/r0-h-1-b.jsonl", [encode_line({"v": 99, "ev": "step", "seq": 0})])
        book = book_of(store)
        book.refresh()
        assert book.view().counters


def test_values_outside_the_sites_list_become_other(tmp_path: Path) -> None:
    site = tmp_path / "ett.toml"
    site.write_text('[teams]\nads = ["ctr-main"]\n[store]\nurl = "x.db"\n')
    labels, url = read_site(site, "a")
    gate = LabelGate(labels)
    assert url == "x.db"
    assert gate.admit("ads", "ctr-main") == ("ads", "ctr-main")
    assert gate.admit("ads", "mine") == ("ads", "other")
    assert gate.admit("rogue", "ctr-main") == ("other", "ctr-main")
    assert gate.admit("", "") == ("none", "none")
    assert gate.num_refused == {"team": 1, "model": 1}


def test_without_a_list_the_number_of_values_is_bounded() -> None:
    gate = LabelGate(SiteLabels())
    admitted = {gate.admit("ads", f"model-{number}")[1] for number in range(MAX_MODELS + 50)}
    assert len(admitted) == MAX_MODELS + 1
    assert gate.num_refused["model"] == 50


@pytest.mark.parametrize("text", ["[teams]\nads = 3\n", "teams = 3\n", "[store]\nurl = 3\n", "[teams"])
def test_a_site_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ett.toml").write_text(text)
    with pytest.raises(ConfigError):
        read_site(tmp_path / "ett.toml", "a")
