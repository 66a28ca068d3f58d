"""A real Prometheus scrapes a real collector: what its queries say is what `ett report` says."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector_process import ETT, Collector, clean_environ
from wait import LONGEST_S, wait_until

pytest.importorskip("uvicorn", reason="the collector's libraries are the extra ett[server]")
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian) is not installed"),
]
EXAMPLE = Path(__file__).parents[2] / "docs" / "worked-example"
CASES = Path(__file__).parents[1] / "ett" / "cases"
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: ett
  authorization: {{credentials_file: {token}}}
  static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """Debian's server on a free port, its data under the test's folder."""

    def __init__(self, folder: Path, config: str) -> None:
        (folder / "prometheus.yml").write_text(config)
        subprocess.run(["promtool", "check", "config", "prometheus.yml"], cwd=folder, check=True, capture_output=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    "--config.file=prometheus.yml",
                    "--storage.tsdb.path=tsdb",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                cwd=folder, stdout=log, stderr=log,
            )  # fmt: skip

    def query(self, expression: str) -> dict[tuple[str, ...], float]:
        """Return label values (sorted by label) -> value; nothing while the server is not up."""
        asked = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=LONGEST_S) as reply:
                result = json.load(reply)["data"]["result"]
        except (urllib.error.URLError, ConnectionError):
            return {}
        return {tuple(v for _, v in sorted(row["metric"].items())): float(row["value"][1]) for row in result}

    def read(self, expression: str) -> dict[tuple[str, ...], float]:
        """Return the answer, once there is one: a scrape that came too late on a busy machine leaves none."""
        answers: list[dict[tuple[str, ...], float]] = []
        wait_until(lambda: answers.append(self.query(expression)) or answers[-1], expression)  # type: ignore[func-returns-value]
        return answers[-1]

    def wait_for_scrape(self) -> None:
        """Return when the server has taken what the collector says from now on."""
        now_s, up = time.time(), 'up{job="ett"}'
        wait_until(lambda: self.query(f"timestamp({up}) > {now_s} and {up} == 1"), "a scrape")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    token = tmp_path / "token"
    token.write_text("a-token-for-this-test-only\n")
    collector = Collector(tmp_path, "--token-file", str(token), "--cluster", "lab")
    yield collector.start()
    collector.kill()


@pytest.fixture
def prometheus(collector: Collector, tmp_path: Path) -> Iterator[Prometheus]:
    target = collector.url.removeprefix("http://")
    server = Prometheus(tmp_path, CONFIG.format(target=target, token=tmp_path / "token"))
    yield server
    server.end()


def sync(collector: Collector, events: Path) -> None:
    command = [*ETT, "sync", "--events", str(events), "--endpoint", collector.url]
    environ = clean_environ(ETT_HOME=str(collector.folder / "home"), ETT_TOKEN_FILE=str(collector.folder / "token"))
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=LONGEST_S)


def report_ns(events: Path) -> dict[str, int]:
    done = subprocess.run(
        [*ETT, "report", "--events", str(events), "--json"], check=True, capture_output=True, env=clean_environ()
    )
    ns: dict[str, int] = json.loads(done.stdout)["data"]["ns"]
    return ns


def test_what_prometheus_sums_is_what_reports_say(collector: Collector, prometheus: Prometheus, tmp_path: Path) -> None:
    second = tmp_path / "second"
    shutil.copytree(EXAMPLE, second)
    expected: Counter[str] = Counter()
    for number, events in enumerate((EXAMPLE, second)):
        if number:
            rename_job(events)
        sync(collector, events)
        for component, ns in report_ns(events).items():
            expected["training" if component == "effective" else component] += ns
            if component == "wasted":
                expected["training"] += ns
    seconds = "sum by (component) (ett_component_job_seconds_total)"
    revised = "sum by (component) (ett_component_revised_job_seconds_total)"
    query = f"{seconds} - ({revised} or 0 * {seconds})"
    wanted = {(component,): ns / 1e9 for component, ns in expected.items() if ns}
    wait_until(lambda: prometheus.query(query) == pytest.approx(wanted, abs=1e-6), f"{wanted}")
    of = 'sum(ett_component_job_seconds_total{{component="{}"}})'.format
    effective = f"{of('training')} - {of('wasted')}"
    total = sum(report_ns(EXAMPLE)["effective"] for _ in range(2)) / 1e9
    assert prometheus.read(effective) == {(): pytest.approx(total, abs=1e-6)}
    assert prometheus.read("sum(ett_jobs)") == {(): 2.0}
    prometheus.wait_for_scrape()
    labels = set(prometheus.read("count by (cluster) (ett_component_rank_seconds_total)"))
    assert labels == {("lab",)}


def test_a_killed_collector_is_no_reset_of_the_fleets_counters(collector: Collector, prometheus: Prometheus) -> None:
    sync(collector, EXAMPLE)
    total = "sum(ett_component_job_seconds_total)"
    before = prometheus.read(total)
    collector.kill()
    wait_until(lambda: 0.0 in prometheus.query('up{job="ett"}').values(), "a scrape that fails")
    collector.start()
    wait_until(lambda: 1.0 in prometheus.query('up{job="ett"}').values(), "a scrape that works again")
    wait_until(lambda: prometheus.query(total) == before, "the same counters")
    resets = "sum(resets(ett_component_job_seconds_total[5m])) + sum(resets(ett_wall_rank_seconds_total[5m]))"
    assert set(prometheus.read(resets).values()) == {0.0}
    sync(collector, EXAMPLE)
    prometheus.wait_for_scrape()
    assert prometheus.read(total) == before


def rename_job(folder: Path) -> None:
    """Make the copy another job's log: every line with another name and its own checksum."""
    import zlib

    for path in (folder / "events").rglob("*.jsonl"):
        lines = []
        for line in path.read_bytes().splitlines():
            body = json.dumps(
                json.loads(line.rsplit(b"\t", 1)[0]) | {"job": "second"}, sort_keys=True, separators=(",", ":")
            ).encode()
            lines.append(b"%b\t%08x\n" % (body, zlib.crc32(body)))
        path.write_bytes(b"".join(lines))
