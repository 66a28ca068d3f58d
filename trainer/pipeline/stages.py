"""The stages of a batch, which thread runs each, and what each waits for: the one table, which `StageClock` enforces.

Within a thread stages run in the order of batches; between threads only what `after` says holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Thread = Literal["ahead", "train", "update"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A stage must have ended: of the same batch, or of the one so many batches before."""

    stage: str
    batches_before: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    thread: Thread
    after: tuple[Edge, ...]


def stages(depth: int) -> tuple[Stage, ...]:
    """Return the graph, in the order in which one batch goes through it.

    Args: depth: batches that are announced while an earlier one trains; 0: one thread, one batch after the other.
    """
    if not depth:
        return (
            Stage("read", "train", (Edge("update_dense", 1),)),
            Stage("exchange_samples", "train", (Edge("read"),)),
            Stage("look_up", "train", (Edge("exchange_samples"),)),
            Stage("forward_backward", "train", (Edge("look_up"),)),
            Stage(
                "update_colliding", "train", (Edge("forward_backward"),)
            ),  # sums of gradients; no batch waits for rows
            Stage("update_exclusive", "train", (Edge("update_colliding"),)),
            Stage("update_dense", "train", (Edge("update_exclusive"),)),
        )
    return (
        Stage("read", "ahead", (Edge("take", depth),)),
        Stage("exchange_samples", "ahead", (Edge("read"),)),  # between ranks
        Stage("announce", "ahead", (Edge("exchange_samples"),)),  # ids to their owners, exclusive rows back
        Stage("take", "train", (Edge("announce"), Edge("update_dense", 1))),
        Stage("fetch_colliding", "train", (Edge("take"),)),
        Stage("forward_backward", "train", (Edge("fetch_colliding"),)),
        # Sums of gradients, and the rows that a batch under way waits for; then all others, beside the next batch.
        Stage("update_colliding", "train", (Edge("forward_backward"), Edge("update_exclusive", 1))),
        Stage("update_exclusive", "update", (Edge("update_colliding"),)),
        Stage("update_dense", "train", (Edge("update_colliding"),)),
    )
