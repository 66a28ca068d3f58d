"""Optimizer steps and batch fetches -> the intervals of training steps. Knows no torch.

A step ends at the end of an optimizer's step. It begins where the last one ended, or at the first fetch of a batch
since then if the time between (evaluations and saves left out) is more than a second and more than the last step took:
so what a loop does between two steps (reading the loss from the device, logging) is part of the step, and a long
pause is not. Micro-batches add up.

Where several optimizers step on one batch (a GAN), the last of them ends the step: which one that is, is learned from
the first batch on, and whatever steps after it belongs to the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

GAP_LIMIT_NS = 1_000_000_000


class Interval(NamedTuple):
    """A step: [begin_ns, end_ns) and its samples; None where no batch with a known size was fetched for it."""

    begin_ns: int
    end_ns: int
    samples: int | None


class StepIntervals:
    """One process's steps.

    Args:
        on_step: gets each step when it is over.
        on_begin: gets the begin of a step that may be long in coming, at the fetch of its first batch.
        covered_ns: time spent so far in spans (evaluations, saves), which is never a pause.
    """

    def __init__(
        self,
        on_step: Callable[[Interval], None],
        on_begin: Callable[[int], None],
        covered_ns: Callable[[], int],
    ) -> None:
        self._on_step, self._on_begin, self._covered_ns = on_step, on_begin, covered_ns
        self.last_end_ns: int | None = None
        self.last_duration_ns = 0
        self._begin_ns: int | None = None
        self._covered_at_end_ns = 0
        self._samples: int | None = 0
        self._num_batches = 0
        self._closer: int | None = None  # the optimizer whose step ends a step
        self._known: set[int] = set()
        self._since_end: set[int] = set()  # optimizers that stepped since the last step ended
        self._open_end: tuple[int, int] | None = None  # (when, optimizer) of a step that waits for its closer

    @property
    def has_begun(self) -> bool:
        """True once the first step has, which is at the end of the fetch of its first batch."""
        return self.last_end_ns is not None or self._begin_ns is not None

    def fetching(self, now_ns: int) -> None:
        """A batch is asked for."""
        if self._open_end is not None:
            end_ns, self._closer = self._open_end
            self._close(end_ns)
        if self._begin_ns is None and self.last_end_ns is not None:
            self._begin_ns = self.last_end_ns
            if now_ns - self.last_end_ns > GAP_LIMIT_NS:
                gap_ns = now_ns - self.last_end_ns - (self._covered_ns() - self._covered_at_end_ns)
                if gap_ns > max(GAP_LIMIT_NS, self.last_duration_ns):
                    self._begin_ns = now_ns
                self._on_begin(self._begin_ns)

    def fetched(self, now_ns: int, samples: int | None) -> None:
        """A batch is there; None: nobody can tell how many samples are in it."""
        if self._begin_ns is None:
            self._begin_ns = now_ns
            self._on_begin(now_ns)
        self._num_batches += 1
        self._since_end.clear()
        self._samples = None if samples is None or self._samples is None else self._samples + samples

    def collected(self, now_ns: int, samples: int | None) -> None:
        """The batches of the next step are there, said by who knows: these samples, whatever was fetched so far."""
        self._samples, self._num_batches = 0, 0
        self.fetched(now_ns, samples)

    def completed(self, end_ns: int) -> None:
        """A step is complete, said by who knows."""
        if self._begin_ns is None:
            self._begin_ns = end_ns if self.last_end_ns is None else self.last_end_ns
        self._close(end_ns)

    def forget_batches(self) -> None:
        """What was fetched since the last step was not trained on."""
        self._samples, self._num_batches = 0, 0
        if self.last_end_ns is None:
            self._begin_ns = None

    def stepped(self, begin_ns: int, end_ns: int, optimizer: int) -> None:
        """An optimizer has stepped; `begin_ns` is only looked at where nothing else tells when training began."""
        is_new = optimizer not in self._known
        if is_new:
            self._known.add(optimizer)
        if self._begin_ns is None:
            self._begin_ns = begin_ns if self.last_end_ns is None else self.last_end_ns
        if self._num_batches:
            if self._closer == optimizer or self._closer is None:
                self._closer = optimizer
                self._close(end_ns)
            else:
                self._open_end = (end_ns, optimizer)
        elif self.last_end_ns is not None and is_new:
            self._closer = optimizer  # a second one on the batch of the last step: from now on it ends the step
        elif self._closer in (None, optimizer) or optimizer in self._since_end:
            self._closer = optimizer
            self._close(end_ns)
        else:
            self._since_end.add(optimizer)

    def flush(self) -> None:
        """End a step that waits for its closer: the program does something else, or ends."""
        if self._open_end is not None:
            self._close(self._open_end[0])

    def _close(self, end_ns: int) -> None:
        begin_ns = end_ns if self._begin_ns is None else min(self._begin_ns, end_ns)
        samples = self._samples if self._num_batches else None
        self.last_end_ns, self.last_duration_ns = end_ns, end_ns - begin_ns
        self._covered_at_end_ns = self._covered_ns()
        self._begin_ns, self._open_end = None, None
        self._samples, self._num_batches = 0, 0
        self._since_end.clear()
        self._on_step(Interval(begin_ns, end_ns, samples))
