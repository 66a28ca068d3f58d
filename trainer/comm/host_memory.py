"""Rows between ranks of one host through memory that they share, where gloo would copy them through sockets.

Each rank writes what it sends into memory of its own, a small message says where, and the others read it there. The
message goes over the process group, so it also orders memory, waits no longer than the group does, and names a lost
peer. The memory is an unnamed file (memfd): the kernel frees it with the last process that maps it, so a SIGKILL leaves
nothing behind.

Message n is written into half n mod 2 of the memory. A rank that writes message n has all small messages n - 1, so
every rank has entered message n - 1 and has read n - 2, which stood in the same half.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ett.trainer.comm.collectives import Collectives, PassedOnCollectives

_SMALLEST_BYTES = 1 << 20  # of a half
_TOKEN_BYTES = 16
Bytes = NDArray[np.uint8]


class _OwnMemory:
    """Memory that this rank writes; when every peer has mapped it, the descriptor is closed."""

    def __init__(self, half_bytes: int, serial: int) -> None:
        self.half_bytes, self.serial = half_bytes, serial
        self.descriptor = os.memfd_create("ett-exchange", os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, 2 * half_bytes)
        self.bytes = _mapped(self.descriptor, 2 * half_bytes)


class HostMemoryCollectives(PassedOnCollectives):
    """Implements `ett.trainer.comm.collectives.Collectives` for ranks of one host: bits are those of the group."""

    def __init__(self, group: Collectives, own: _OwnMemory, peer_pids: Sequence[int], peers: Sequence[Bytes]) -> None:
        self.rank, self.world_size = group.rank, group.world_size
        self._group, self._own, self._peer_pids = group, own, list(peer_pids)
        self._peers = list(peers)  # the memory that each rank writes, and its serial number
        self._serials = [own.serial] * group.world_size
        self._messages = 0

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        if rows.device.type != "cpu":
            return self._group.all_to_all(rows, send_counts, recv_counts)
        received, counts = self.all_to_all_uneven(rows, send_counts)
        assert counts == list(recv_counts), (counts, recv_counts)
        return received

    def all_to_all_uneven(self, rows: Tensor, send_counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        if rows.device.type != "cpu":
            return self._group.all_to_all_uneven(rows, send_counts)
        row_bytes = rows.element_size() * math.prod(rows.shape[1:])
        sent, ends = _bytes_of(rows), [end * row_bytes for end in accumulate(send_counts, initial=0)]
        first = self._write(sent, ends[self.rank], ends[self.rank + 1])
        place = [self._own.serial, self._own.descriptor, self._own.half_bytes]
        words = [[*place, first + begin, count] for begin, count in zip(ends[:-1], send_counts, strict=True)]
        answers = self._group.exchange_words(torch.tensor(words)).tolist()
        self._map_replaced([answer[:3] for answer in answers])
        counts = [count for *_, count in answers]
        received = rows.new_empty((sum(counts), *rows.shape[1:]))
        got, end = _bytes_of(received), 0
        for rank, (*_, first, count) in enumerate(answers):
            begin, end = end, end + count * row_bytes
            if rank == self.rank:
                got[begin:end] = sent[ends[rank] : ends[rank + 1]]
            else:
                got[begin:end] = self._peers[rank][first : first + end - begin]
        return received, counts

    def beside(self) -> Collectives:
        return share_host_memory(self._group.beside())

    def _write(self, sent: Bytes, own_begin: int, own_end: int) -> int:
        """Copy a message, but for this rank's own part, to the half whose turn it is; return where that begins.

        The memory is replaced by larger memory where it must be.
        """
        if len(sent) > self._own.half_bytes:
            # Peers that still read the last message have mapped the old memory, which stays as long as they have.
            self._own = _OwnMemory(1 << (len(sent) - 1).bit_length(), self._own.serial + 1)
        first = self._messages % 2 * self._own.half_bytes
        self._messages += 1
        half = self._own.bytes[first : first + self._own.half_bytes]
        half[:own_begin] = sent[:own_begin]
        half[own_end : len(sent)] = sent[own_end:]
        return first

    def _map_replaced(self, places: Sequence[Sequence[int]]) -> None:
        """Map what has a new serial number, and let nobody go on, or end, before all have."""
        serials = [serial for serial, *_ in places]
        if serials == self._serials:  # the same on every rank
            return
        for rank, (serial, descriptor, half_bytes) in enumerate(places):
            if serial != self._serials[rank] and rank != self.rank:
                self._peers[rank] = _opened(self._peer_pids[rank], descriptor, 2 * half_bytes)
        self._serials = serials
        self._group.exchange_words(torch.zeros(self.world_size, 1, dtype=torch.int64))
        self._own.close()


def share_host_memory(group: Collectives) -> Collectives:
    """Return collectives that use shared memory if all ranks can read each other's, else the group; every rank calls.

    They can where they are processes of one user that see each other under /proc: on one host, and not in containers
    that hide processes. A random token proves that the memory is the peer's.
    """
    if group.world_size == 1:
        return group
    own = _try_own()
    token = [secrets.randbits(62) for _ in range(2)]
    if own is not None:
        own.bytes[:_TOKEN_BYTES] = np.array(token, np.int64).view(np.uint8)
    descriptor = -1 if own is None else own.descriptor
    words = torch.tensor([[os.getpid(), descriptor, *token]] * group.world_size)
    answers = group.exchange_words(words).tolist()
    peers = [_with_token(*answer) for answer in answers]
    can_read = own is not None and all(peer is not None for peer in peers)
    everybody = group.exchange_words(torch.full((group.world_size, 1), int(can_read)))
    if own is None or not bool(everybody.all()):
        return group
    own.close()
    return HostMemoryCollectives(group, own, [pid for pid, *_ in answers], [peer for peer in peers if peer is not None])


def _try_own() -> _OwnMemory | None:
    try:
        return _OwnMemory(_SMALLEST_BYTES, 0)
    except (AttributeError, OSError):  # a system without memfd, or out of descriptors
        return None


def _with_token(pid: int, descriptor: int, *token: int) -> Bytes | None:
    if descriptor < 0:
        return None
    try:
        found = _opened(pid, descriptor, 2 * _SMALLEST_BYTES)
    except (OSError, ValueError):  # another host, user or container; ValueError: a smaller file
        return None
    return found if np.array_equal(found[:_TOKEN_BYTES].view(np.int64), token) else None


def _opened(pid: int, descriptor: int, size: int) -> Bytes:
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return _mapped(opened, size)
    finally:
        os.close(opened)


def _mapped(descriptor: int, size: int) -> Bytes:
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


def _bytes_of(rows: Tensor) -> Bytes:
    view: Bytes = rows.contiguous().view(-1).numpy().view(np.uint8) if rows.numel() else np.empty(0, np.uint8)
    return view
