"""Where the rows of each feature's table are among the rows of a block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_SHORT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FeatureRows:
    first_F: Tensor  # int64: the row of id 0
    count_F: Tensor  # int64: ids are in [0, count)
    num_rows: int  # of the block

    def slot_type(self) -> torch.dtype:
        """Return the integers that number the block's rows; short ones halve the passes of a radix sort."""
        return torch.int64 if self.num_rows > _MOST_SHORT else torch.int32
