"""Batches of log lines into the store: one at a time, a bounded number waiting, every line counted once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ett.collector.batch import MAX_LINES, Block, decode
from ett.collector.body import BodyTooLarge, unpack
from ett.collector.own_figures import OwnFigures
from ett.store import Store


@dataclass(kw_only=True, slots=True)
class Reply:
    """What became of a batch's lines; accepted + duplicate + the rejected ones are all of them."""

    accepted: int = 0
    duplicate: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {"accepted": self.accepted, "duplicate": self.duplicate, "rejected": self.rejected}


class Intake:
    """Stores batches. `on_stored` hears of each job that got new lines."""

    def __init__(self, store: Store, figures: OwnFigures, on_stored: Callable[[str], None]) -> None:
        self._store, self._figures, self._on_stored = store, figures, on_stored

    def take(self, body: bytes, encoding: str) -> Reply:
        """Unpack, check and store one batch; run by one thread only.

        Raises:
            DataError: malformed as a whole; nothing of it was stored. BodyTooLarge.
            EttError: the store failed. What was stored before that is a duplicate when it is sent again.
        """
        blocks = decode(unpack(body, encoding))
        num_lines = sum(len(block.lines) for block in blocks)
        if num_lines > MAX_LINES:
            raise BodyTooLarge(f"{num_lines} lines", expected=f"at most {MAX_LINES}", do="send them in smaller parts")
        reply = Reply()
        for block in blocks:
            self._store_block(block, reply)
        return reply

    def _store_block(self, block: Block, reply: Reply) -> None:
        result = self._store.ingest(block.job, block.file, block.lines)
        reply.accepted += result.accepted
        reply.duplicate += result.duplicate
        for line in result.rejected:
            reply.rejected.append(
                {"job": block.job, "file": block.file, "line": line.line_index, "code": line.code, "text": line.text}
            )
        events = self._figures.events
        events.labels(result="accepted", code="").inc(result.accepted)
        events.labels(result="duplicate", code="").inc(result.duplicate)
        for code, count in Counter(line.code for line in result.rejected).items():
            events.labels(result="rejected", code=code).inc(count)
        if result.accepted:
            self._figures.last_ingest.set(time.time())
            self._on_stored(block.job)
