"""Equal faults do equal things: names from a seed, one thread, no log."""

from __future__ import annotations

import logging
import mmap
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from ett.checkpoint import buffer_pool, table_reader, table_writer, verify
from ett.checkpoint.buffer_pool import PAGE_BYTES
from ett.checkpoint.retention_thread import RetentionThread
from ett.checkpoint.worker_threads import Parts

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def quiet(chance: random.Random) -> Iterator[None]:
    """Take names from `chance`, work in one thread, and say nothing."""
    names = random.Random(chance.random())

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=names.getrandbits(128), version=4)

    with ExitStack() as patches:
        patches.enter_context(patch.object(uuid, "uuid4", new_uuid))
        for owner, name, serial in (
            (table_writer, "in_threads", _in_turn),
            (table_writer, "one_ahead", _not_ahead),
            (table_reader, "in_threads", _in_turn),
            (table_reader, "in_pipeline", _in_one_line),
            (verify, "in_threads", _in_turn),
            (RetentionThread, "after_commit", RetentionThread.retire),
        ):
            patches.enter_context(patch.object(owner, name, serial))
        # A few rows need no huge pages, each of which the kernel would clear.
        patches.enter_context(patch.object(buffer_pool, "mapped", _small))
        threads, level = torch.get_num_threads(), logging.root.manager.disable
        patches.callback(torch.set_num_threads, threads)
        patches.callback(logging.disable, level)
        torch.set_num_threads(1)
        logging.disable(logging.CRITICAL)
        yield


def _small(num_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(-1, -(-num_bytes // PAGE_BYTES) * PAGE_BYTES), np.uint8)


def _in_turn(jobs: Iterable[Job], work: Callable[[Job], Result], threads: int) -> list[Result]:
    return [work(job) for job in jobs]


def _in_one_line(
    jobs: Iterable[Job], read: Callable[[Job], Item | Parts[Job]], work: Callable[[Item], Result], readers: int
) -> list[Result]:
    results: list[Result] = []
    for job in jobs:
        found = read(job)
        if isinstance(found, Parts):
            results += _in_one_line(found.jobs, read, work, readers)
        else:
            results.append(work(found))
    return results


def _not_ahead(items: Iterator[Item]) -> Iterator[Item]:
    return items
