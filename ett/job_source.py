"""Where jobs' logs are read from: the folders under $ETT_HOME, or a store (--store, $ETT_STORE, site's [store] url)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ett.accounting import JobAccount, account
from ett.errors import AccessDenied, ConfigError, CorruptState, NotFound, UsageError
from ett.event_reader import EventLog, folder_files, read_folder
from ett.job_folder import JobFolder, ett_home, read_json
from ett.job_window import AccountingPolicy
from ett.launch_plan import shared_launch
from ett.recipe_cli import site_file
from ett.toml_file import read_toml

if TYPE_CHECKING:
    from ett.store import Store
    from ett.store.export_jsonl import ExportedJob

Wrapped = Callable[..., Any]


def store_option(command: Wrapped) -> Wrapped:
    """The option `--store`, for every verb that reads jobs; pass what it gives to `store_url`."""
    return click.option(
        "--store",
        metavar="URL",
        help="Read from this job store, a path or postgresql://…; else from $ETT_STORE, the site's [store] url, or the "
        "jobs' folders.",
    )(command)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLog:
    """One job's event log where it was found: in a folder, or in the store of that URL."""

    job: str
    folder: Path | None = None
    store: str | None = None

    def __str__(self) -> str:
        if self.store is None:
            return str(self.folder)
        from ett.store.database import without_password

        return f"store {without_password(self.store)}, job {self.job}"

    def read(self) -> EventLog:
        """Raises: NotFound, CorruptState, and what `open_store` raises."""
        if self.store is not None:
            with opened(self.store) as store:
                return store.event_log(self.job)
        assert self.folder is not None
        return self._exported().log() if self.folder.is_file() else read_folder(self.folder)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield (name under events/, bytes) of each event file, by name. Raises: NotFound, and as `read` does."""
        if self.store is not None:
            with opened(self.store) as store:
                yield from store.images(self.job)
            return
        assert self.folder is not None
        if self.folder.is_file():
            yield from self._exported().files.items()
            return
        yield from ((name, b"".join(pieces())) for name, pieces in folder_files(self.folder))

    def _exported(self) -> ExportedJob:
        from ett.store.export_jsonl import read_export

        assert self.folder is not None
        jobs = read_export(self.folder)
        if len(jobs) != 1:
            raise UsageError(f"{self.folder} holds {len(jobs)} jobs", expected="the export of one job")
        return jobs[0]

    def account(self, as_of_ns: int | None, policy: AccountingPolicy) -> JobAccount | None:
        """Return the account, as of now where no instant is given; None for an empty log.

        Without an instant nothing is cut: a record that lies ahead of this machine's clock is still there.
        """
        return _account(self.read(), as_of_ns, policy)

    def launch_and_recipe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what may be shown of launch.json, and recipe.json; empty where there is none."""
        import json

        if self.store is None and self.folder is not None and self.folder.is_file():
            exported = self._exported()
            return exported.launch, exported.recipe
        if self.store is None:
            folder = JobFolder(self.folder or Path())
            return shared_launch(read_json(folder.launch_file)), read_json(folder.recipe_file)
        with opened(self.store) as store:
            launch, recipe = (json.loads(text) for text in store.texts(self.job))
        return launch, recipe


def store_url(given: str | None) -> str | None:
    """Return the store to read from: the given one, else $ETT_STORE, else [store] url of the site file; None: folders.

    Raises: as `read_toml`, and ConfigError: it says something else than a text.
    """
    if given or os.environ.get("ETT_STORE"):
        return given or os.environ["ETT_STORE"]
    site = site_file()
    if site is None:
        return None
    tree, _ = read_toml(site, "site file")
    table = tree.get("store", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{site}: store is {table!r}", expected="a table [store]", code="F003")
    url = table.get("url")
    if url is not None and not isinstance(url, str):
        raise ConfigError(f"{site}: store.url is {url!r}", expected="a path, or postgresql://…", code="F003")
    return url or None


def own_store() -> str:
    """Return the store under $ETT_HOME, whose folder is made: who names a store elsewhere makes its folder.

    Raises: AccessDenied.
    """
    home = ett_home(os.environ)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise AccessDenied(f"$ETT_HOME {home} cannot be made: {err.strerror}") from err
    return str(home / "ett.db")


def opened(url: str) -> Store:
    """Open a store that is there. Raises: NotFound: the file is missing: reading makes no empty store."""
    from ett.store import open_store

    if "://" not in url and not Path(url).is_file():
        raise NotFound(f"there is no job store {url}", do="`ett ingest --all` makes it of the jobs' folders")
    return open_store(url)


def accounts(
    store: str | None, policy: AccountingPolicy, as_of_ns: int | None = None
) -> Iterator[tuple[str, JobAccount | CorruptState | NotFound | None]]:
    """Yield every job's name with its account; None where nothing is recorded, an error where it cannot be read."""
    with ExitStack() as until_done:
        for job, read in _all_logs(store_url(store), until_done):
            try:
                yield job, _account(read(), as_of_ns, policy)
            except (CorruptState, NotFound) as err:
                yield job, err


def _all_logs(url: str | None, until_done: ExitStack) -> Iterator[tuple[str, Callable[[], EventLog]]]:
    """Yield each job's name and what reads its log; a store stays open until then."""
    if url is not None:
        store = until_done.enter_context(opened(url))
        yield from ((name, partial(store.event_log, name)) for name in store.job_names())
        return
    jobs = ett_home(os.environ) / "jobs"
    folders = sorted(entry for entry in jobs.iterdir() if entry.is_dir()) if jobs.is_dir() else []
    yield from ((folder.name, partial(read_folder, folder)) for folder in folders)


def _account(log: EventLog, as_of_ns: int | None, policy: AccountingPolicy) -> JobAccount | None:
    now_ns = time.time_ns() if as_of_ns is None else as_of_ns
    return account(log, as_of_ns=now_ns, cut_at_as_of=as_of_ns is not None, policy=policy)
