"""What compiled code depends on, as one name: equal keys may share artefacts, and nothing else may.

A key errs on the side of another name. torch checks each graph again by a key of its own, so most wrong hits here would
cost a compilation; but that key lacks some of what code is made for (ATEN_CPU_CAPABILITY, torch 2.13), where this one
alone stands between a job and other bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Json = Any  # what json.loads returns
KEY_DIGITS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyParts:
    """All that a key is made of; plain JSON values, so that `ett compile-cache show` can say them.

    software, machine: see `platform_facts`. code: see `code_digest`.
    """

    software: Mapping[str, Json]
    machine: Mapping[str, Json]
    code: str
    model: Mapping[str, Json]  # the model's configuration: what its graphs follow from
    options: Mapping[str, Json]  # of the compiler
    shapes: Json  # the profile: sizes that are compiled, and which of them may vary

    @property
    def key(self) -> str:
        """Return 32 hexadecimal digits."""
        return hashlib.sha256(canonical(self.as_json())).hexdigest()[:KEY_DIGITS]

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


def canonical(value: Json) -> bytes:
    """Return JSON with one spelling per value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
