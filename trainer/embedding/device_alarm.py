"""What was wrong with a batch on a device, and how the host learns of it without waiting.

Kernels count in the words of the batch's report: gradients that are not finite; for each block of tables the wrong
ids, how far before the end the first one stands, and how many slots its caches lack; then ranks where anything was
wrong. The words are copied to the host behind the kernels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class BatchReport:
    words: Tensor  # int64 [2 + 2 * blocks], or with caches [2 + 4 * blocks], on the device; 0: nothing wrong
    on_ranks: Tensor  # int64 [1], the last of `words`: ranks where something was wrong, if they share the tables
    words_of_ids: list[Tensor]  # int64 [2] of each block: parts of `words`
    words_of_caches: list[Tensor]  # the same, for weights and for states; empty without caches
    ids: list[Tensor] = field(default_factory=list)  # int64 [L] of each block
    offsets: list[Tensor] = field(default_factory=list)  # int64 [F * B + 1]
    is_told: bool = False  # what is wrong was said already


@dataclass(frozen=True, slots=True)
class WrongBatch:
    num_wrong_ids: int
    first_id: int
    block: int
    bag: int  # of the block: the one with that id
    num_bags: int
    num_short: int = 0  # slots, of the cache of the block's weights or states
    of_states: bool = False
    is_elsewhere: bool = False  # on another rank, which knows what


@dataclass(frozen=True, slots=True)
class _Sent:
    report: BatchReport
    words: Tensor  # in host memory
    arrived: torch.cuda.Event | None  # None: at once

    def has_arrived(self) -> bool:
        return self.arrived is None or bool(self.arrived.query())  # type: ignore[no-untyped-call]


class DeviceAlarm:
    """The reports of one collection that the host has not read yet."""

    def __init__(self, device: torch.device, num_blocks: int, *, has_caches: bool = False) -> None:
        self._device, self._num_blocks, self._has_caches = device, num_blocks, has_caches
        self._unsent: BatchReport | None = None  # of a batch that was looked up, and may yet come back with gradients
        self._sent: deque[_Sent] = deque()
        self._unused: list[Tensor] = []

    def new_report(self) -> BatchReport:
        num_pairs = self._num_blocks * (1 + self._has_caches)
        words = torch.zeros(2 + 2 * num_pairs, dtype=torch.int64, device=self._device)
        pairs = [words[1 + 2 * number : 3 + 2 * number] for number in range(num_pairs)]
        return BatchReport(words, words[-1:], pairs[: self._num_blocks], pairs[self._num_blocks :])

    def expect(self, report: BatchReport) -> None:
        """The batch was looked up: it is sent with its gradients, or before the next question."""
        self._unsent = report

    def send(self, report: BatchReport) -> None:
        """Have the words, as the kernels launched so far leave them, come to the host."""
        if report is self._unsent:
            self._unsent = None
        is_cuda = self._device.type == "cuda"
        copy = self._unused.pop() if self._unused else torch.empty_like(report.words, device="cpu", pin_memory=is_cuda)
        copy.copy_(report.words, non_blocking=is_cuda)
        arrived = torch.cuda.current_stream(self._device).record_event() if is_cuda else None
        self._sent.append(_Sent(report, copy, arrived))

    def known(self) -> WrongBatch | None:
        """Return the first wrong batch that the host can know of by now, once."""
        self._send_last()
        while self._sent and self._sent[0].has_arrived():
            if found := self._read(self._sent.popleft()):
                return found
        return None

    def waited_for(self) -> WrongBatch | None:
        """Return the first wrong batch, once; waits for the device."""
        self._send_last()
        while self._sent:
            sent = self._sent.popleft()
            if sent.arrived is not None:
                sent.arrived.synchronize()
            if found := self._read(sent):
                return found
        return None

    def _send_last(self) -> None:
        if self._unsent is not None:
            self.send(self._unsent)

    def _read(self, sent: _Sent) -> WrongBatch | None:
        num_not_finite, *of_blocks, num_ranks = sent.words.tolist()
        of_ids, of_caches = of_blocks[: 2 * self._num_blocks], of_blocks[2 * self._num_blocks :]
        self._unused.append(sent.words)
        report = sent.report
        is_wrong_here = bool(num_not_finite or any(of_blocks))
        if report.is_told or not (is_wrong_here or num_ranks):
            return None
        report.is_told = True
        for block, (count, before_end) in enumerate(zip(of_ids[::2], of_ids[1::2], strict=True)):
            if count:
                ids, offsets = report.ids[block], report.offsets[block]
                position = len(ids) - before_end
                bag = int(torch.searchsorted(offsets[1:], position, right=True))
                return WrongBatch(count, int(ids[position]), block, bag, len(offsets) - 1)
        for number, num_short in enumerate(of_caches):
            if num_short:
                return WrongBatch(0, 0, number // 2, 0, 0, num_short, bool(number % 2))
        return WrongBatch(0, 0, 0, 0, 0, is_elsewhere=not is_wrong_here)
