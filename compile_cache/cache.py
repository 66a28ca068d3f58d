"""Artefacts of one key: fetched before the first compilation, published after it, by whoever comes first.

Nothing here fails training: what cannot be read, written or trusted is said in an event and in the log, and torch
compiles as if there were no cache.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from ett.clock import Clock, SystemClock
from ett.compile_cache.cache_folder import allowed_paths, read_files, write_files
from ett.compile_cache.cache_paths import identity, is_graph
from ett.compile_cache.config import CompileConfig
from ett.compile_cache.key import KeyParts
from ett.compile_cache.pack import Pack, open_pack, seal_pack
from ett.compile_cache.pack_store import PackStore, Stored, open_pack_store
from ett.compile_cache.signing_key import signing_key
from ett.compile_cache.store_bound import drop_oldest
from ett.errors import CorruptState, EttError, Unreachable
from ett.event_schema import NS
from ett.job_folder import ett_home
from ett.raised import raised_by

log = logging.getLogger(__name__)
FOLDER = "compile-cache"
MOST_PACKS = 32  # of one key: each has graphs that those before it lack
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

FetchResult = Literal["hit", "miss", "refused", "failed", "late"]
PublishResult = Literal["published", "nothing_new", "taken", "too_large", "failed"]


class Emit(Protocol):
    def __call__(self, ev: str, **fields: object) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What a fetch came to: hit (packs were unpacked), miss, refused (all that there is), failed, late."""

    result: FetchResult
    source: str = ""  # the uri of the store that had them
    num_packs: int = 0
    num_bytes: int = 0  # of the packs, as stored
    seconds: float = 0.0
    why: str = ""  # refused or failed: what was wrong


@dataclass(frozen=True, slots=True)
class _Store:
    """One of the stores, and what is known of its packs of this key."""

    packs: PackStore
    known: set[str] = field(default_factory=set)  # identities of files
    read: set[str] = field(default_factory=set)  # names of packs whose files are known, or that were refused


class CompileCache:
    """The artefacts of one key on one rank, between stores and the folder that torch compiles in.

    Args:
        folder: torch's cache folder of this process alone; what lies in it is published.
        emit: of the run.
    """

    def __init__(
        self, config: CompileConfig, parts: KeyParts, folder: Path, environ: Mapping[str, str], emit: Emit
    ) -> None:
        self.key, self.folder = parts.key, folder
        self._config, self._parts, self._environ, self._emit = config, parts, environ, emit
        self._clock: Clock = SystemClock()
        uris = [str(local_folder(environ)), *([config.uri] if config.uri else [])]
        self._stores = [_Store(open_pack_store(uri)) for uri in dict.fromkeys(uris)]
        self._unpacked: set[str] = set()  # identities of what was fetched
        self._lock = threading.Lock()  # one of fetch and publish at a time

    def fetch(self) -> Fetched:
        """Unpack what the stores have of this key, the local one first; takes compile.fetch_timeout_s at most."""
        fetched = self._fetch_within(self._config.fetch_timeout_s)
        self._say("fetch", fetched.result, fetched.why, fetched.seconds)
        self._record("fetch", fetched.result, fetched.seconds, source=fetched.source, bytes=fetched.num_bytes)
        return fetched

    def wait(self, longest_s: float, pause: Callable[[float], object] = time.sleep) -> Fetched:
        """Return once another rank has published; after compile.wait_s, or longest_s, this one compiles for itself.

        So it does as soon as a pack is refused, or a store fails or does not answer.
        """
        begun_ns, pause_s = self._clock.mono_ns(), _FIRST_PAUSE_S
        most_s, fetched = min(self._config.wait_s, longest_s), Fetched(result="miss")
        while fetched.result == "miss" and (left_s := most_s - self._seconds_since(begun_ns)) > 0.0:
            pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            fetched = self._fetch_within(min(self._config.fetch_timeout_s, left_s))
        waited_s = self._seconds_since(begun_ns)
        self._say("wait", fetched.result, fetched.why, waited_s)
        self._record("wait", fetched.result, waited_s, source=fetched.source, bytes=fetched.num_bytes)
        return fetched

    def discard(self, why: str) -> None:
        """Forget what was fetched, which torch cannot load; what is compiled instead takes its place on this host."""
        begun_ns, local = self._clock.mono_ns(), self._stores[0]
        shutil.rmtree(self.folder, ignore_errors=True)
        failure = raised_by(lambda: list(map(local.packs.delete, local.read)))
        if failure is not None:
            log.warning("a pack of the compile cache that torch cannot load is not removed: %s", failure)
        for names in (local.read, local.known, self._unpacked):
            names.clear()
        self._say("load", "refused", why, self._seconds_since(begun_ns))
        self._record("load", "refused", self._seconds_since(begun_ns))

    def publish(self) -> PublishResult:
        """Store what was compiled here and no pack of this key has; of several ranks and jobs, one does so."""
        begun_ns = self._clock.mono_ns()
        results: list[PublishResult] = ["nothing_new"]
        store_one = self._publish if self._has_new() else self._fill
        works = [lambda store=store: results.append(store_one(store)) for store in self._stores]
        failures = [failure for failure in map(raised_by, works) if failure is not None]
        seconds = self._seconds_since(begun_ns)
        result: PublishResult = "failed" if failures else _newest(results)
        self._say("publish", result, "; ".join(map(_text, failures)), seconds)
        self._record("publish", result, seconds)
        for failure in failures:
            if not isinstance(failure, Exception):
                raise failure
        return result

    def _fetch_within(self, limit_s: float) -> Fetched:
        found: list[Fetched] = []
        thread = threading.Thread(target=lambda: found.append(self._fetch()), name="ett-compile-fetch", daemon=True)
        thread.start()
        thread.join(limit_s)
        limit = f"no answer within {limit_s:.3g} s (compile.fetch_timeout_s, or what is left of a wait)"
        return found[0] if found else Fetched(result="late", seconds=limit_s, why=limit)

    def _fetch(self) -> Fetched:
        begun_ns = self._clock.mono_ns()
        fetched = Fetched(result="miss")
        for store in self._stores:
            found: list[Fetched] = []
            failure = raised_by(lambda store=store, found=found: found.append(self._fetch_from(store)))  # type: ignore[misc]
            here = found[0] if found else Fetched(result="failed", why=_text(failure))
            if here.result == "hit" or fetched.result == "miss":
                fetched = here
            if here.result == "hit":
                break
        return replace(fetched, seconds=self._seconds_since(begun_ns))

    def _fetch_from(self, store: _Store) -> Fetched:
        with self._turn():
            self._secret()  # where nothing can be signed, no rank need wait for what another publishes
            num_bytes, num_packs, refused, is_local = 0, 0, "", store is self._stores[0]
            for stored in store.packs.stored(self.key)[:MOST_PACKS]:
                try:
                    pack, data = self._open(store, stored)
                except CorruptState as err:
                    refused = err.fact
                    log.warning("%s; %s", err.fact, err.did)
                    continue
                except FileNotFoundError:  # it went meanwhile
                    continue
                write_files(self.folder, pack.files)
                self._unpacked.update(map(identity, pack.files))
                store.packs.mark_used(stored.name)
                if not is_local:
                    self._copy_here(stored.name, data, pack)
                num_packs, num_bytes = num_packs + 1, num_bytes + len(data)
            if not num_packs:
                return Fetched(result="refused" if refused else "miss", why=refused)
            if not is_local:
                self._bound_local()
            return Fetched(result="hit", source=store.packs.uri, num_packs=num_packs, num_bytes=num_bytes)

    def _copy_here(self, name: str, data: bytes, pack: Pack) -> None:
        """Keep a pack of the shared store for the next start; a full disk costs that start a download."""
        local = self._stores[0]
        try:
            local.packs.create(name, data)
        except FileExistsError:  # another rank's copy, or a pack that was refused: neither is known to have the same
            return
        except (EttError, OSError) as err:
            log.warning("a pack of the compile cache is not kept here: %s", err)
            return
        local.read.add(name)
        local.known.update(map(identity, pack.files))

    def _bound_local(self) -> None:
        """Keep this host's store below its bound; where it cannot be, that is no failure of what was stored there."""
        try:
            drop_oldest(self._stores[0].packs, self._config.max_bytes, keep=self.key)
        except (EttError, OSError) as err:
            log.warning("the compile cache of this host is above compile.max_bytes: %s", err)

    def _open(self, store: _Store, stored: Stored) -> tuple[Pack, bytes]:
        """Return a pack and its bytes; what it has is known from now on. Raises: CorruptState: it is refused."""
        store.read.add(stored.name)
        where, most = f"{store.packs.uri}/{stored.name}", self._config.max_pack_bytes
        if stored.num_bytes > most:
            raise CorruptState(f"{where} has {stored.num_bytes} bytes", expected=f"at most {most}", code="C012")
        data = store.packs.read(stored.name)
        pack = open_pack(data, self._secret(), key=self.key, most_bytes=most, where=where)
        store.known.update(map(identity, pack.files))
        return pack, data

    def _has_new(self) -> bool:
        """Return whether anything was compiled here: sources alone, as a warm start leaves, are not new."""
        new = {path for path in allowed_paths(self.folder) if identity(path) not in self._unpacked}
        return any(map(is_graph, new)) if self._unpacked else bool(new)

    def _publish(self, store: _Store) -> PublishResult:
        with self._turn():
            files = read_files(self.folder, store.known, self._config.max_pack_bytes)
            if files is None:
                return "too_large"
            was_taken = False
            for number in range(MOST_PACKS):
                files = {path: data for path, data in files.items() if identity(path) not in store.known}
                if not files or (store.known and not any(map(is_graph, files))):
                    return "taken" if was_taken else "nothing_new"
                name = f"{self.key}/{number:04d}.pack"
                if name not in store.read and self._create(store, name, files):
                    return "published"
                was_taken = True
            return "taken"

    def _fill(self, store: _Store) -> PublishResult:
        """Give a shared store that has nothing of this key what this start found in this host's own."""
        local = self._stores[0]
        if store is local or not self._unpacked or store.known or store.packs.stored(self.key):
            return "nothing_new"
        result: PublishResult = "nothing_new"
        with self._turn():
            for stored in local.packs.stored(self.key)[:MOST_PACKS]:
                # Not whole, gone, or another was faster.
                with suppress(CorruptState, FileNotFoundError, FileExistsError):
                    store.packs.create(stored.name, self._open(local, stored)[1])
                    result = "published"
        return result

    def _create(self, store: _Store, name: str, files: Mapping[str, bytes]) -> bool:
        """Store a pack; False where another has the name, whose files are known then."""
        pack = Pack(key=self.key, parts=self._parts.as_json(), files=files)
        try:
            store.packs.create(name, seal_pack(pack, self._secret()))
        except FileExistsError:
            self._learn(store, name)
            return False
        store.read.add(name)
        store.known.update(map(identity, files))
        if store is self._stores[0]:
            self._bound_local()
        return True

    def _learn(self, store: _Store, name: str) -> None:
        """Know what another has published under a name."""
        for stored in store.packs.stored(self.key):
            if stored.name == name:
                try:
                    self._open(store, stored)
                except CorruptState as err:
                    log.warning("%s; %s", err.fact, err.did)
                except FileNotFoundError:  # it went meanwhile
                    log.info("%s/%s has gone", store.packs.uri, name)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._config.fetch_timeout_s):
            raise Unreachable("an earlier request to a store of the compile cache has no answer yet")
        try:
            yield
        finally:
            self._lock.release()

    def _secret(self) -> bytes:
        return signing_key(self._config.key_file, self._environ)

    def _seconds_since(self, begun_ns: int) -> float:
        return (self._clock.mono_ns() - begun_ns) / NS

    def _say(self, action: str, result: str, why: str, seconds: float) -> None:
        level = logging.WARNING if result in ("refused", "failed", "late", "too_large") else logging.INFO
        log.log(level, "compile cache %s of %s: %s in %.2f s%s", action, self.key, result, seconds, why and f": {why}")

    def _record(self, action: str, result: str, seconds: float, **fields: object) -> None:
        self._emit("compile", action=action, result=result, key=self.key, seconds=round(seconds, 3), **fields)


def local_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of this host's packs."""
    return ett_home(environ) / FOLDER


def _newest(results: list[PublishResult]) -> PublishResult:
    order: tuple[PublishResult, ...] = ("published", "too_large", "taken", "nothing_new")
    return next(result for result in order if result in results)


def _text(failure: BaseException | None) -> str:
    return "" if failure is None else f"{type(failure).__name__}: {failure}"
