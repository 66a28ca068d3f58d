"""`ett collect`: the collector as a process."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ett.errors import ConfigError, UsageError
from ett.job_source import own_store
from ett.recipe_cli import site_file
from ett.recipe_sections import SLUG

if TYPE_CHECKING:
    import socket

    from ett.collector.access import AccessPolicy
    from ett.collector.site_labels import SiteLabels
    from ett.site import Site
    from ett.store import Store


STORE_WAIT_S = 5.0  # for other writers, before a sender is told to come back


@click.command()
@click.option(
    "--bind", default="127.0.0.1:9480", show_default=True, metavar="HOST:PORT", help="Port 0 takes a free one."
)
@click.option(
    "--store", "store_url", metavar="URL", help="Else $ETT_STORE, [store] url of the site file, or $ETT_HOME/ett.db."
)
@click.option("--token-file", type=click.Path(path_type=Path), help="Else $ETT_TOKEN_FILE, else $ETT_TOKEN.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A further name in Host; repeatable.")
@click.option("--cluster", default="default", show_default=True, metavar="NAME", help="Label of every metric.")
@click.option("--config", type=click.Path(path_type=Path), help="Site file; else $ETT_CONFIG or $ETT_HOME/ett.toml.")
def command(
    *,
    bind: str,
    store_url: str | None,
    token_file: Path | None,
    hosts: tuple[str, ...],
    cluster: str,
    config: Path | None,
) -> None:
    """Take event logs over HTTP into the job store, and serve them as Prometheus metrics.

    POST /v1/events, GET /metrics, /metrics/jobs, /healthz and /readyz. It prints one line when it is ready and ends on
    SIGTERM.
    """
    if not SLUG.fullmatch(cluster):
        raise UsageError(f"--cluster {cluster!r}", expected="lower-case letters, digits, '.', '_' or '-'")
    _check_installed()
    from ett.collector.access import access_policy, read_token
    from ett.collector.listener import bind as bind_to
    from ett.collector.listener import host_and_port
    from ett.collector.site_labels import read_site
    from ett.site import load_site
    from ett.store import open_store

    host, _ = host_and_port(bind)
    site_path = site_file(config)
    labels, site_store = read_site(site_path, cluster)
    access = access_policy(host, read_token(token_file, os.environ), hosts)
    listening = bind_to(bind)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="ett collect: %(levelname)s: %(message)s")
    url = store_url or os.environ.get("ETT_STORE") or site_store or own_store()
    with open_store(url, wait_s=STORE_WAIT_S) as store:
        _run(store, labels, load_site(site_path), access, listening)


def _run(store: Store, labels: SiteLabels, site: Site, access: AccessPolicy, listening: socket.socket) -> None:
    from prometheus_client import CollectorRegistry

    from ett.collector.booking import Booking
    from ett.collector.counter_book import CounterBook
    from ett.collector.exposition import FleetCollector, JobsCollector, render
    from ett.collector.intake import Intake
    from ett.collector.listener import serve
    from ett.collector.own_figures import OwnFigures
    from ett.collector.server import Parts, build_app
    from ett.collector.site_labels import LabelGate

    figures = OwnFigures()
    book = CounterBook(store, LabelGate(labels), site)
    book.load()
    figures.registry.register(FleetCollector(book))
    of_jobs = CollectorRegistry()
    of_jobs.register(JobsCollector(book))
    booking = Booking(store, book, figures)

    def scrape(accept: str) -> tuple[bytes, str]:
        booking.before_scrape()
        return render(figures.registry, accept)

    parts = Parts(
        intake=Intake(store, figures, book.note),
        figures=figures,
        render=scrape,
        render_jobs=lambda accept: render(of_jobs, accept),
        check_ready=lambda: _check_store(store),
        begin=booking.begin,
        end=booking.end,
    )
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    auth = "none" if access.token_sha256 is None else "token"
    serve(
        build_app(parts, access),
        listening,
        lambda: click.echo(f"listening on http://{shown}:{port} pid {os.getpid()} store {store.name} auth {auth}"),
    )


def _check_store(store: Store) -> None:
    store.get_meta("collector")


def _check_installed() -> None:
    try:
        import prometheus_client
        import starlette
        import uvicorn
    except ImportError as err:
        raise ConfigError(
            f"the collector needs {err.name}, which is not installed", do="pip install 'ett[server]'"
        ) from err
    assert prometheus_client and starlette and uvicorn
