"""Exports one job while it runs: `python -m ett.otel.live_export JOB_DIR`, started by `ett launch` and ended by it.

Spans go out when an attempt or the job ends, metrics every minute. What was sent is written down in the job's folder,
so that the next supervisor's export does not send it again.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ett.accounting import JobAccount
from ett.errors import EttError
from ett.job_folder import read_json, write_json
from ett.live_account import LiveAccount
from ett.log_follower import LogFollower
from ett.otel.job_span import JobSpan
from ett.otel.job_trace import job_spans
from ett.otel.metric_points import Published, metric_points
from ett.otel.otlp_export import send_metrics, send_spans
from ett.otel.otlp_settings import OtlpSettings, otlp_settings
from ett.otel.resource import job_resource

_ENDS = (b'"ev":"attempt_ended"', b'"ev":"job_ended"')
_LOOK_S = 1.0  # between two looks for an end; also how long after one the ranks' last records are waited for
_SHARE = 20  # reading a long log takes time: a look every so many times as long as one took, at most
_NICE = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveConfig:
    """Times in seconds."""

    interval_s: float = 60.0
    flush_s: float = 2.0
    with_job_id: bool = False


@dataclass(slots=True)
class EndWatch:
    """Tells whether supervisors wrote the end of an attempt or job since the last look; reads only what is new."""

    events: Path
    offsets: dict[Path, int] = field(default_factory=dict)

    def has_new_end(self) -> bool:
        found = False
        for path in self.events.glob("0/sup-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self.offsets.get(path, 0))
                new = file.read()
            whole = new.rfind(b"\n") + 1
            self.offsets[path] = self.offsets.get(path, 0) + whole
            found = found or any(end in new[:whole] for end in _ENDS)
        return found


class LiveExport:
    """Sends what became final since the last time; keeps what it could not send for the next."""

    def __init__(self, folder: Path, settings: OtlpSettings, config: LiveConfig, say: Callable[[str], None]) -> None:
        self._settings, self._config, self._say = settings, config, say
        self._live = LiveAccount()
        self._follower = LogFollower(folder, self._live)  # a job of many days is not read again each minute
        self._sent_file = folder / "otel" / "sent.json"
        self._sent: set[str] = set(read_json(self._sent_file).get("spans", []))
        self._published = Published()
        self._told = ""

    def send(self, *, spans: bool, metrics: bool, timeout_s: float | None = None) -> bool:
        """Return whether everything that was asked for arrived; a failure is said once, until another follows."""
        settings = self._settings if timeout_s is None else replace(self._settings, timeout_s=timeout_s)
        try:
            self._follower.poll()
            found = self._live.account(time.time_ns())
            if found is None:
                return True
            if spans:
                self._send_spans(found, settings)
            if metrics:
                self._send_metrics(found, settings)
        except (EttError, OSError) as err:
            self._tell(str(err))
            return False
        self._tell("")
        return True

    def _send_spans(self, found: JobAccount, settings: OtlpSettings) -> None:
        new: dict[str, list[JobSpan]] = {}
        for span in job_spans(found):
            # A job that ended may be launched again, and its root then ends later.
            key = f"attempt {span.attempt}" if span.attempt is not None else f"job {found.window.end_ns}"
            if not span.is_open and key not in self._sent:
                new.setdefault(key, []).append(span)
        for key, own in new.items():
            sent = send_spans(own, job_resource(found), settings)
            self._sent.add(key)
            write_json(self._sent_file, {"spans": sorted(self._sent)})
            rejected = f", {sent.rejected} rejected ({sent.message})" if sent.rejected else ""
            self._say(f"{key}: {sent.accepted} spans sent{rejected}")

    def _send_metrics(self, found: JobAccount, settings: OtlpSettings) -> None:
        points = self._published.monotonic(metric_points(found))
        resource = job_resource(found, with_job_id=self._config.with_job_id)
        window = found.window
        send_metrics(points, resource, settings, start_ns=window.start_ns, time_ns=window.end_ns)

    def _tell(self, failure: str) -> None:
        if failure and failure != self._told:
            self._say(f"export failed, and is tried again: {failure}")
        self._told = failure


def run(live: LiveExport, watch: EndWatch, config: LiveConfig, is_over: Callable[[float], bool]) -> None:
    """Export until `is_over(wait_s)`, which waits so long or until the launch is over, says so; then once more."""
    next_metrics_s = time.monotonic() + config.interval_s
    is_due = False
    while not is_over(_LOOK_S):
        ended = watch.has_new_end()
        now_s = time.monotonic()
        metrics = now_s >= next_metrics_s
        if is_due or metrics:
            # An end that was seen one look ago: the ranks' last records are there by now. What fails is tried again
            # with the next metrics, or the next end.
            live.send(spans=True, metrics=metrics)
            is_due = False
            took_s = time.monotonic() - now_s
            if metrics:
                next_metrics_s = time.monotonic() + max(config.interval_s, _SHARE * took_s)
        is_due = is_due or ended
    live.send(spans=True, metrics=True, timeout_s=max(0.1, config.flush_s / 2))


def stdin_is_over(wait_s: float) -> bool:
    """Wait for the end of standard input, which whoever started us holds open."""
    ready, _, _ = select.select([sys.stdin.fileno()], [], [], wait_s)
    return bool(ready) and os.read(sys.stdin.fileno(), 4_096) == b""


def main(argv: list[str], environ: Mapping[str, str]) -> None:
    parser = argparse.ArgumentParser(prog="ett.otel.live_export")
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--endpoint", default="")
    parser.add_argument("--interval-s", type=float, default=60.0)
    parser.add_argument("--flush-s", type=float, default=2.0)
    parser.add_argument("--with-job-id", action="store_true")
    args = parser.parse_args(argv)
    os.nice(_NICE)
    config = LiveConfig(interval_s=args.interval_s, flush_s=args.flush_s, with_job_id=args.with_job_id)
    settings = otlp_settings(args.endpoint, environ)

    def say(text: str) -> None:
        print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), text, flush=True)

    watch = EndWatch(args.job_dir / "events")
    live = LiveExport(args.job_dir, settings, config, say)
    run(live, watch, config, stdin_is_over)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
