"""A rank that outlives another one leaves nothing of the lost generation behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from ett import process_group

pytest.importorskip("torch.distributed")


class Held:
    """As a start-up's nodes: in a circle with what they have made."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_garbage_that_was_frozen_holds_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_take_from_defaults", lambda group: None)
    gc.disable()
    try:
        held = Held()
        alive = weakref.ref(held)
        del held
        gc.freeze()
    finally:
        gc.enable()
    gc.collect()
    assert alive() is not None, "frozen objects are not collected"
    process_group.leave_process_group()
    assert alive() is None
