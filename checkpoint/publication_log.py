"""The numbered publications of a folder: listed, read, and taken create-only, so that of two publishers each has one.

The newest is that with the highest number. No name is ever written twice, on no store: there is no pointer to swap.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.publication import FOLDER, Publication, parse_publication, publication_name
from ett.checkpoint.store import Store
from ett.errors import CorruptState

_NAME = re.compile(FOLDER + r"/(\d{16})\.json")


class PublicationLog:
    def __init__(self, store: Store) -> None:
        self.store = store

    def numbers(self) -> list[int]:
        """Return the numbers of all publications, ascending, damaged ones included."""
        return sorted(int(found[1]) for name in self.store.list(FOLDER) if (found := _NAME.fullmatch(name)))

    def read(self, number: int) -> Publication:
        """Raises: CorruptState: missing or damaged. ConfigError: of a newer format."""
        name = publication_name(number)
        try:
            return parse_publication(self.store.read(name), name)
        except FileNotFoundError as err:
            raise CorruptState(f"{name} is missing under {self.store.uri}") from err

    def read_all(self) -> tuple[list[Publication], dict[int, CorruptState]]:
        """Return the publications, newest first, and what is wrong with the damaged ones."""
        found: list[Publication] = []
        damaged: dict[int, CorruptState] = {}
        for number in reversed(self.numbers()):
            try:
                found.append(self.read(number))
            except CorruptState as err:
                damaged[number] = err
        return found, damaged

    def of_key(self, key: str) -> Publication | None:
        """Return the newest publication of a state with its settings."""
        return next((publication for publication in self.read_all()[0] if publication.key == key), None)

    def of_state(self, ckpt_uuid: str, settings: Json) -> Publication | None:
        """Return the newest publication of a state with some settings, full or delta."""
        found = (p for p in self.read_all()[0] if (p.lineage.ckpt_uuid, p.settings) == (ckpt_uuid, settings))
        return next(found, None)

    def append(self, publication: Publication, check: Callable[[], None]) -> Publication:
        """Create a publication under the next free number, at which instant the artefact exists, and return it.

        One of the same key that another publisher made meanwhile is returned instead.

        Args: check: called before each attempt; raises where the artefact's files are not there.
        """
        while True:
            # Of one list: whoever publishes the same after it was made takes the number that is tried here.
            known, damaged = self.read_all()
            for other in known:
                if other.key == publication.key:
                    return other
            check()
            newest = max([*damaged, *(other.number for other in known)], default=0)
            publication = replace(publication, number=newest + 1)
            name = publication_name(publication.number)
            try:
                self.store.create(name, publication.to_bytes())
            except FileExistsError:
                continue  # somebody was faster: is it the same?
            self.store.sync([name])
            return publication
