"""id -> slot in device memory: open addressing, one probe a word of state, insertion by compare-and-swap.

`state` holds the slot of each entry, or EMPTY, or ERASED; `keys` the id beside it. An inserting program claims an entry
by swapping its slot in, so two ids never share one; a key is written after that, which is safe because ids that are
inserted together are distinct and absent, so nobody compares keys meanwhile. Kernels of one stream do not overlap.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ett.trainer.kernels.triton_rows import grid_of, mix, power_of_two

EMPTY, ERASED = -1, -2
_BLOCK = 256


@triton.jit
def _place_of(ids, mask):
    return mix(ids.to(tl.uint64)).to(tl.int64) & mask


@triton.jit
def _find_kernel(ids, keys, state, out, num_ids, mask, ERASE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < num_ids
    wanted = tl.load(ids + at, mask=live, other=0)
    place = _place_of(wanted, mask)
    found = tl.full((BLOCK,), -1, tl.int64)
    is_looking = live
    while tl.max(is_looking.to(tl.int32)) > 0:
        slot = tl.load(state + place, mask=is_looking, other=-1)
        key = tl.load(keys + place, mask=is_looking, other=0)
        is_hit = is_looking & (slot >= 0) & (key == wanted)
        found = tl.where(is_hit, slot.to(tl.int64), found)
        if ERASE:
            tl.store(state + place, tl.full((BLOCK,), -2, tl.int32), mask=is_hit)
        is_looking = is_looking & (slot != -1) & (is_hit == 0)
        place = (place + 1) & mask
    tl.store(out + at, found, mask=live)


@triton.jit
def _insert_kernel(ids, slots, keys, state, num_ids, mask, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < num_ids
    wanted = tl.load(ids + at, mask=live, other=0)
    slot = tl.load(slots + at, mask=live, other=0).to(tl.int32)
    place = _place_of(wanted, mask)
    is_looking = live
    while tl.max(is_looking.to(tl.int32)) > 0:
        seen = tl.load(state + place, mask=is_looking, other=0)
        # A swap has no mask: whoever wants none swaps in the spare entry beyond the table, which is never free.
        is_free = is_looking & (seen < 0)
        before = tl.atomic_cas(state + tl.where(is_free, place, mask + 1), seen, slot)
        # A free entry that is not claimed was taken meanwhile: `seen` may come from a cache, the swap does not.
        is_claimed = is_free & (before == seen)
        tl.store(keys + place, wanted, mask=is_claimed)
        is_looking = is_looking & (is_claimed == 0)
        place = (place + 1) & mask


class TritonIndex:
    """The device's index of a cache with a fixed number of slots.

    Args:
        num_slots: the most ids that it ever holds; it never grows.
        device: where it lives.
    """

    def __init__(self, num_slots: int, device: torch.device | str) -> None:
        size = power_of_two(max(2 * num_slots, 16))
        self.num_slots, self._mask, self._num_ids, self._num_erased = num_slots, size - 1, 0, 0
        self._keys = torch.zeros(size, dtype=torch.int64, device=device)
        self._state = torch.full((size + 1,), EMPTY, dtype=torch.int32, device=device)
        self._state[size] = 0

    def __len__(self) -> int:
        return self._num_ids

    def find(self, ids: Tensor) -> Tensor:
        """Return the slot of each id, int64 [N], -1 where it has none."""
        return self._find(ids, erase=False)

    def insert(self, ids: Tensor, slots: Tensor) -> None:
        """Give each id its slot: int64 [N] both; ids distinct and absent, slots in [0, num_slots), none in use."""
        if self._num_ids + len(ids) > self.num_slots:
            raise AssertionError(f"{self._num_ids} + {len(ids)} ids in an index of {self.num_slots} slots")
        if len(ids):
            _insert_kernel[_grid(ids)](ids, slots, self._keys, self._state, len(ids), self._mask, BLOCK=_BLOCK)
            self._num_ids += len(ids)

    def erase(self, ids: Tensor) -> Tensor:
        """Forget ids (int64 [N], distinct, present) and return their slots."""
        slots = self._find(ids, erase=True)
        self._num_ids -= len(ids)
        self._num_erased += len(ids)
        # Erased entries lengthen every search that passes them; a quarter of the table is when it is laid out anew.
        if 4 * self._num_erased > self._mask:
            self._rebuild()
        return slots

    def items(self) -> tuple[Tensor, Tensor]:
        """Return all ids and their slots, in no order."""
        places = torch.nonzero(self._state[:-1] >= 0).squeeze(1)
        return self._keys[places], self._state[places].to(torch.int64)

    def _find(self, ids: Tensor, *, erase: bool) -> Tensor:
        out = torch.empty_like(ids)
        if len(ids):
            _find_kernel[_grid(ids)](ids, self._keys, self._state, out, len(ids), self._mask, ERASE=erase, BLOCK=_BLOCK)
        return out

    def _rebuild(self) -> None:
        ids, slots = self.items()
        self._state[:-1].fill_(EMPTY)
        self._num_ids = self._num_erased = 0
        self.insert(ids, slots)


def _grid(ids: Tensor) -> tuple[int]:
    return grid_of(len(ids), _BLOCK)
