"""accelerate's DataLoaderShard reads one batch ahead.

The program gets a batch when the next one was fetched, or none is left.
"""

from __future__ import annotations

from typing import Any

from ett.hooks.around import patch
from ett.hooks.batch_hook import BatchHook


class AccelerateHook:
    """Tells the batch hook which passes read ahead; steps and saves of accelerate are torch's own."""

    def __init__(self, batches: BatchHook) -> None:
        self._batches = batches

    def install(self, module: Any) -> None:
        """Args: module: accelerate.data_loader."""
        self._shard = module.DataLoaderShard
        patch([module.DataLoaderStateMixin], "begin", self._begins, lambda *_: None)

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The shard's generator has just begun: the next pass over a DataLoader is its own."""
        if isinstance(args[0], self._shard):
            self._batches.announce_read_ahead(num_skipped=args[0].skip_batches)
