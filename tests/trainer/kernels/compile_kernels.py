"""Run as a program, without the interpreter: make every launch compile for an H200 and not run. No GPU is needed.

The launches are those of the code under test, so a kernel is compiled for the very types, alignments and constants that
it meets on a device. Arguments: the numbers of columns.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ett.trainer.kernels import triton_batch, triton_kept_rows, triton_rows, triton_slots, triton_update
from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.kept_rows import Ring, RowBits, Updated, as_words, words_of
from ett.trainer.kernels.segments import CHUNK, RowGradients, Segments, segments_of
from ett.trainer.kernels.slot_map import TOLD_HEADER, Staged, make_slot_map
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad, Adam, RowWiseAdagrad, Sgd

NUM_ROWS = 48
OPTIMIZERS = (Sgd(), Adagrad(1e-8), RowWiseAdagrad(1e-8), Adam(0.9, 0.999, 1e-8))
compiled: set[str] = set()


class H200:
    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only() -> None:
    run = JITFunction.run

    def compiling(self: Any, *args: Any, **more: Any) -> Any:
        compiled.add(self.__name__)
        return run(self, *args, **(more | {"warmup": True}))

    JITFunction.run = compiling
    driver.set_active(H200())


def compile_rows(dim: int, lengths: list[int]) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    length, table = int(offsets[-1]), torch.zeros(NUM_ROWS, dim)
    slots = torch.arange(length) % NUM_ROWS
    triton_rows.gather_rows(table, slots, torch.empty(length, dim))
    triton_rows.scatter_rows(table, slots[:1], torch.empty(1, dim))
    init = RowInit("t", seed=1, dim=dim, scale=0.1)
    for first_id in (0, 1, 2**40):
        triton_rows.fill_initial_rows(table, int(init.key.astype(np.int64)), first_id, 0.1, 0.0)
    bags = torch.repeat_interleave(torch.arange(len(lengths)), offsets.diff())
    triton_batch.count_not_finite(torch.zeros(length, dim), torch.zeros(1, dtype=torch.int64))
    for scale, num_rows in product((None, torch.ones(length)), (NUM_ROWS, 2**40)):
        first, report = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        of = FeatureRows(first, first, num_rows)
        triton_batch.locate_rows(slots.to(torch.int64), offsets, of, report)
        slots = slots.to(of.slot_type())
        for batch_size in {1, len(lengths)}:
            triton_rows.pool_rows(table, slots, offsets, scale, batch_size)
        gradients = RowGradients(torch.zeros(len(lengths), dim), bags, scale, segments_of(slots), report)
        for optimizer in OPTIMIZERS:
            specs = optimizer.states(dim)
            states = {s.name: torch.zeros(NUM_ROWS, s.width, dtype=getattr(torch, s.dtype)) for s in specs}
            triton_update.apply_gradients(optimizer, table, states, gradients, 0.1)


def compile_slots(dim: int) -> None:
    for length, num_slots, kind in ((1, 1, torch.int32), (300, 160, torch.int32), (16, 161, torch.int64)):
        slots, rows = make_slot_map(400, num_slots, torch.device("cpu")), torch.arange(length, dtype=kind)
        order, segments = torch.arange(length), segments_of(rows)
        tables = [(w, dtype) for w, dtype in ((dim, torch.float32), (1, torch.float32), (1, torch.int64))]
        pairs = [(torch.zeros(num_slots, w, dtype=t), torch.zeros(400, w, dtype=t)) for w, t in tables]
        for now in (1, 16, 2**40):
            found = triton_slots.make_room(slots, segments, slots.words[:1], now, now)
            triton_slots.exchange(slots, segments, found, [*pairs, pairs[0]], None, now=now)
        for room in (1, 16):
            told = torch.zeros(TOLD_HEADER + 2 * room, dtype=torch.int64)
            triton_slots.list_rows(slots, segments, found, told, room)
            come = [torch.zeros(room, w, dtype=t) for w, t in tables]
            for (cached, _), out in zip(pairs, come, strict=True):
                triton_slots.lift_rows(slots, cached, out)
            triton_slots.exchange(slots, segments, found, pairs, Staged(come, room, room), now=1)
        for cached, below in pairs:
            triton_slots.write_down(cached, below, slots.row_of_slot, order)
            triton_slots.read_through(cached, below, slots.slot_of_row, rows, cached.new_empty(length, cached.shape[1]))


def compile_kept_rows(dim: int) -> None:
    host = torch.device("cpu")
    bits = RowBits(words_of(NUM_ROWS, host), words_of(NUM_ROWS, host))
    for kind, length in product((torch.int32, torch.int64), (1, 16, 300)):
        slots = torch.arange(length, dtype=kind) % NUM_ROWS
        for optimizer, row_of_slot in product(OPTIMIZERS, (None, torch.arange(NUM_ROWS))):
            states = [torch.zeros(NUM_ROWS, s.width, dtype=getattr(torch, s.dtype)) for s in optimizer.states(dim)]
            columns = tuple(map(as_words, (torch.zeros(NUM_ROWS, dim), *states)))
            ring = Ring(torch.zeros(16, dtype=torch.int64), columns, torch.zeros(2, dtype=torch.int64))
            segments = Segments(slots, torch.arange(length), slots)
            updated = Updated(segments, columns, row_of_slot, 0, length, torch.zeros(4, dtype=torch.int64))
            for number, to in ((0, None), (1, ring), (2**40, ring)):
                triton_kept_rows.note_update(updated, bits, to, number)
        rows = torch.arange(length)
        triton_kept_rows.claim(rows, bits.wanted, torch.zeros(2, dtype=torch.int64), rows.new_zeros(length + 1))
        words, cached = torch.zeros(length, dtype=torch.int32), as_words(torch.zeros(NUM_ROWS, dim))
        triton_kept_rows.peek(rows, words, cached, cached.new_zeros(length, dim), words)
    for is_and in (False, True):
        triton_kept_rows.merge(bits.wanted, bits.changed, is_and=is_and)


def main() -> None:
    compile_only()
    for dim in map(int, sys.argv[1:]):
        for lengths in ([1], [3], [2] * 16, [1, 0, 3 * CHUNK]):
            compile_rows(dim, lengths)
        compile_slots(dim)
        compile_kept_rows(dim)
    print(*sorted(compiled))


if __name__ == "__main__":
    main()
