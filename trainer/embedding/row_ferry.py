"""How rows cross the link between a cache in device memory and the tables in the host's: not one by one.

The device lists the rows that come and lays those that leave side by side. The host's threads copy rows between the
tables and pinned memory, called by the driver in the order of a stream, and the copy engines move that memory. The
multiprocessors, whose time is the training's, only gather and scatter within the device.

Nobody waits: the copies are as large as the last exchanges were, and a bit; the rows beyond them, whose number nobody
knew, the device reads and writes in the host's memory by itself.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from ett.native import native
from ett.trainer.kernels import slot_map
from ett.trainer.kernels.segments import Segments
from ett.trainer.kernels.slot_map import TOLD_HEADER, Found, SlotMap, Staged

NATIVE = native("ett.trainer.embedding._row_ferry")

STAGED_BYTES = 32 << 20  # each way, of the widest table; as many again on the device
_AT_ONCE = 4096  # rows: the copies' sizes change little


class RowFerry:
    """Of the tables of one cache. One exchange at a time; each begins in the stream of the one before."""

    def __init__(self, tables: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> None:
        """Args: tables: (slots [C, W], all rows [R, W]) each."""
        self._tables, self._device, is_cuda = list(tables), device, device.type == "cuda"
        widest = max(below.shape[1] * below.element_size() for _, below in tables)
        self._capacity = max(1, min(len(tables[0][1]), STAGED_BYTES // widest))

        def staging(place: torch.device) -> list[Tensor]:
            pin = is_cuda and place.type == "cpu"
            return [
                torch.empty(self._capacity, below.shape[1], dtype=below.dtype, device=place, pin_memory=pin)
                for _, below in tables
            ]

        host, num_words = torch.device("cpu"), TOLD_HEADER + 2 * self._capacity
        self._coming, self._leaving, self._come, self._left = (*map(staging, (host, host, device, device)),)
        self._told = torch.zeros(num_words, dtype=torch.int64, pin_memory=is_cuda)
        self._told_by_device = torch.zeros(num_words, dtype=torch.int64, device=device)
        parts = zip((below for _, below in tables), self._coming, self._leaving, strict=True)
        places = [(*(t.data_ptr() for t in part), part[0].shape[1] * part[0].element_size()) for part in parts]
        self._handle: int = NATIVE.make(places, self._told.data_ptr(), self._capacity, torch.get_num_threads())
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        # Of the last exchange: its rows are listed; those that left are down.
        self._events = [torch.cuda.Event() for _ in range(2)] if is_cuda else None  # type: ignore[no-untyped-call]
        weakref.finalize(self, _end, self._handle, device).atexit = False

    def carry(self, slots: SlotMap, rows: Segments, found: Found) -> Staged:
        """Take the rows that leave to their tables, and bring the missing ones as far as the device."""
        self.join()
        room_in, room_out = self.rooms()
        words = slice(TOLD_HEADER + room_in + room_out)
        slot_map.list_rows(slots, rows, found, self._told_by_device[words], room_in)
        for (cached_CW, _), left in zip(self._tables, self._left, strict=True):
            slot_map.lift_rows(slots, cached_CW, left[:room_out])
        self._told[words].copy_(self._told_by_device[words], non_blocking=True)
        self._put_down(room_out)
        self._call(NATIVE.BRING)
        come = [rows_CW[:room_in] for rows_CW in self._come]
        for there, here in zip(come, self._coming, strict=True):
            there.copy_(here[:room_in], non_blocking=True)
        return Staged(come, room_in, room_out)

    def join(self) -> None:
        """Have the current stream wait until what left is in the tables."""
        if self._events is not None:
            torch.cuda.current_stream(self._device).wait_event(self._events[1])

    def rooms(self) -> tuple[int, int]:
        """Return the rows each way that the next exchange has copies for."""
        wanted = (recent + recent // 4 + 1 for recent in NATIVE.recent(self._handle))
        room_in, room_out = (min(self._capacity, -(-rows // _AT_ONCE) * _AT_ONCE) for rows in wanted)
        return room_in, room_out

    def _put_down(self, room_out: int) -> None:
        """In a stream of its own: nothing that comes waits for it."""
        if self._events is None or self._stream is None:
            self._take_leave(room_out)
            return
        listed, is_down = self._events
        listed.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(listed)
            self._take_leave(room_out)
            is_down.record(self._stream)

    def _take_leave(self, room_out: int) -> None:
        for here, left in zip(self._leaving, self._left, strict=True):
            here[:room_out].copy_(left[:room_out], non_blocking=True)
        self._call(NATIVE.PUT_DOWN)

    def _call(self, function: int) -> None:
        """Have one of the two functions called when the current stream comes to it."""
        if self._stream is None:
            (NATIVE.bring if function == NATIVE.BRING else NATIVE.put_down)(self._handle)
            return
        stream = torch.cuda.current_stream(self._device).cuda_stream
        arguments = (ctypes.c_void_p(each) for each in (stream, function, self._handle))
        if status := _cudart().cudaLaunchHostFunc(*arguments):
            raise RuntimeError(f"cudaLaunchHostFunc returned {status}")


def can_ferry() -> bool:
    """Return whether the extension is built and the CUDA runtime is found; without them the device fetches rows."""
    try:
        return NATIVE is not None and _cudart() is not None
    except OSError:
        return False


@cache
def _cudart() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}")  # torch has loaded it


def _end(handle: int, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    NATIVE.end(handle)
