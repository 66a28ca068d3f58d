"""Files that other hosts' buffers have of the commit that is restored: fetched into this host's, hashed on arrival."""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

import xxhash

from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.segment import StoredFile, unhashed_end
from ett.errors import EttError

log = logging.getLogger(__name__)
SILENCE_S = 10.0  # of a peer; then the uploaded file is read
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    stored: StoredFile
    url: str  # of the server that has it


class _Unfit(Exception):
    """What a peer sent is not the file."""


class Peers:
    """fetched: names that were brought into this host's buffer, which has them for the time of the restore only."""

    def __init__(self, local: LocalStore, held: Mapping[str, Held]) -> None:
        self._local, self._held = local, held
        self._locks = {name: threading.Lock() for name in held}
        self._without: set[str] = set()  # urls that did not answer
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.fetched: set[str] = set()

    def fetch(self, name: str) -> bool:
        """Bring a file into the buffer; return whether it is there. A peer that cannot give it is no error."""
        held = self._held.get(name)
        if held is None or held.url in self._without:
            return False
        with self._locks[name]:
            if name in self.fetched:
                return True
            try:
                with suppress(FileExistsError):  # another rank of this host was faster
                    self._copy(held)
            except _Unfit as err:
                log.warning("%s from a peer is not the file (%s); the uploaded one is read", name, err)
                return False
            except (EttError, OSError, http.client.HTTPException) as err:
                self._without.add(held.url)
                log.warning("a peer does not give %s (%s); what it has is read from where it was uploaded", name, err)
                return False
            self.fetched.add(name)
            return True

    def forget(self) -> None:
        """Remove what was fetched."""
        for name in self.fetched:
            self._local.delete(name)
        self.fetched.clear()

    def _copy(self, held: Held) -> None:
        stored = held.stored
        hasher, left = xxhash.xxh3_128(), stored.bytes
        end, expected_end = b"", unhashed_end(stored)
        url = f"{held.url}/{stored.xxh3_128}/{quote(stored.path)}"
        with self._open(url, timeout=SILENCE_S) as answer, self._local.create_stream(stored.path) as file:
            while piece := answer.read(min(_PIECE_BYTES, left + 1)):
                num_hashed = max(0, left - len(expected_end))
                hasher.update(piece[:num_hashed])
                end += piece[num_hashed:]
                left -= len(piece)
                if left < 0:
                    break
                file.write(piece)
            if left or hasher.hexdigest() != stored.xxh3_128 or end != expected_end:
                raise _Unfit(f"{stored.bytes - left} of {stored.bytes} bytes, hash {hasher.hexdigest()}, end {end!r}")
