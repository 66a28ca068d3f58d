"""The node agent: ships jobs' event logs to a collector, at least once, and never holds up training.

It reads files that others append to and talks to the network in a process of its own; a collector that is away costs
nothing but time until it is back.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ett.collector.batch import MAX_LINES, encode
from ett.collector.endpoint import Answer, Backoff, Endpoint
from ett.collector.spool import Batch, Counts, Spool
from ett.errors import AccessDenied, EttError, Unreachable

REQUEST_TIMEOUT_S = 30.0
TOO_LARGE = 413


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """Times in seconds."""

    interval_s: float = 10.0  # between two looks at the files
    shutdown_flush_s: float = 2.0  # from the order to end until the agent has ended
    give_up_after_s: float | None = None  # of failures in a row; None: never, the files can wait


class Agent:
    """Ships what the spools hold.

    Args:
        spools: called for every look at the files; gives one spool after the other, open while it is used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        spools: Callable[[], Iterable[Spool]],
        config: AgentConfig,
        backoff: Backoff | None = None,
    ) -> None:
        self._endpoint, self._spools, self._config = endpoint, spools, config
        self._backoff = backoff or Backoff()
        self._stop = threading.Event()
        self._ends_s: float | None = None  # of the last flush, once the order to end came
        self._failing_since_s: float | None = None
        self.counts = Counts()

    def request_stop(self) -> None:
        """Order the end: what is left is sent within shutdown_flush_s. From a signal handler or any thread."""
        if self._ends_s is None:
            self._ends_s = time.monotonic() + self._config.shutdown_flush_s
            # A request that hangs must not outlast the flush.
            abort = threading.Timer(self._config.shutdown_flush_s, self._endpoint.abort)
            abort.daemon = True
            abort.start()
        self._stop.set()

    def run(self) -> bool:
        """Ship until the order to end, then what is left; return whether all of it was acknowledged.

        Raises: AccessDenied, Unreachable: the endpoint refuses what will not get better by waiting.
        """
        while not self._stop.is_set():
            self.ship()
            self._stop.wait(self._config.interval_s)
        return self.ship()

    def ship(self) -> bool:
        """Send what is in the files now; return whether all of it was acknowledged.

        False: the time to end came first. Raises: as `run`; Unreachable: failures for longer than give_up_after_s.
        """
        is_done = True
        for spool in self._spools():
            before = replace(spool.counts)
            try:
                spool.look()
                is_done = self._ship_one(spool) and is_done
            except FileNotFoundError as err:  # somebody removed a job: there is nothing left to send of it
                _say(f"job {spool.job}: {err.filename} is gone")
            finally:
                self.counts.add(spool.counts.since(before))
        return is_done

    def _ship_one(self, spool: Spool) -> bool:
        max_lines = MAX_LINES
        while (batch := spool.next_batch(max_lines)) is not None:
            answer = self._deliver(batch)
            if answer is None:
                return False
            if answer.is_delivered:
                spool.acknowledge(batch, answer.reply)
            elif batch.num_lines == 1:
                spool.give_up(batch, answer.why)
                _say(f"job {spool.job}: one line can never be sent ({answer.why}); it is passed over")
            else:
                max_lines = batch.num_lines // 2
        return True

    def _deliver(self, batch: Batch) -> Answer | None:
        """Send one batch until there is an answer to it: delivered, or too large. None: the time to end came first."""
        body = encode(batch.blocks())
        while True:
            timeout_s = self._time_left_s()
            if timeout_s <= 0:
                return None
            answer = self._endpoint.post_events(body, timeout_s)
            if answer.is_delivered or answer.status == TOO_LARGE:
                self._note_success()
                return answer
            if not answer.is_worth_retrying:
                raise _refused(self._endpoint.url, answer)
            wait_s = self._note_failure(answer)
            if self._ends_s is None:
                self._stop.wait(wait_s)
            elif wait_s >= self._time_left_s():
                return None
            else:
                time.sleep(wait_s)

    def _time_left_s(self) -> float:
        return REQUEST_TIMEOUT_S if self._ends_s is None else self._ends_s - time.monotonic()

    def _note_success(self) -> None:
        if self._failing_since_s is not None:
            _say(f"{self._endpoint.url} answers again after {time.monotonic() - self._failing_since_s:.0f} s")
        self._failing_since_s = None
        self._backoff.reset()

    def _note_failure(self, answer: Answer) -> float:
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            _say(f"{self._endpoint.url} does not take events ({answer.why}); they stay in their files, trying again")
        limit_s = self._config.give_up_after_s
        if limit_s is not None and now_s - self._failing_since_s >= limit_s:
            raise Unreachable(
                f"{self._endpoint.url} took no events for {limit_s:g} s ({answer.why})",
                did="kept all of them in their files",
                do="the same command sends them later",
            )
        return self._backoff.next_s(answer.retry_after_s)


def _refused(url: str, answer: Answer) -> EttError:
    if answer.status in (401, 403):
        return AccessDenied(
            f"{url} refused the events ({answer.why})",
            did="kept all of them in their files",
            do="set $ETT_TOKEN_FILE to the collector's token; then the same command sends them",
        )
    return Unreachable(
        f"{url} is no collector of this ett ({answer.why})",
        expected="the base URL that `ett collect` printed",
        did="kept all events in their files",
    )


def _say(text: str) -> None:
    sys.stderr.write(f"ett sync: {text}\n")
    sys.stderr.flush()
