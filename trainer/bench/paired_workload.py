"""What `ett bench ett` runs: shapes, what is switched, and the legs of a campaign in their order."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

PLAIN, OPTIMISED, UNDISTURBED = "plain", "optimised", "undisturbed"
CACHES = "{caches}"  # in a setting: a folder that all legs of a shape share
_WITHOUT = "without "
_KILLED_RANK = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A model and its input."""

    name: str
    format: Literal["criteo", "sequence"]
    rows: int  # of the input
    compiled: str  # the part of the model that the plain leg compiles; "": all of it
    set: dict[str, Any]
    quick: bool = False
    without: tuple[str, ...] = ()  # switches that this model cannot have


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """One optimisation: settings of a recipe with it and without."""

    name: str
    on: dict[str, Any]
    off: dict[str, Any]
    quick: bool = True  # also in the quick form


@dataclass(frozen=True, order=True, slots=True)
class Leg:
    """One job of the campaign."""

    shape: str
    variant: str  # PLAIN, OPTIMISED, UNDISTURBED, or "without " and a switch
    repeat: int

    def __str__(self) -> str:
        return f"{self.shape}, {self.variant}" + (f", repeat {self.repeat}" if self.repeat else "")

    @property
    def left_out(self) -> str:
        """The switch that is off in this leg; "" where none is."""
        return self.variant.removeprefix(_WITHOUT) if self.variant.startswith(_WITHOUT) else ""

    @property
    def has_failures(self) -> bool:
        return self.variant != UNDISTURBED


def undisturbed(shape: str) -> Leg:
    """Return the leg that the others of a shape are compared with."""
    return Leg(shape, UNDISTURBED, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """How long the jobs of a shape are here, in steps."""

    steps: int
    every: int  # between two checkpoints
    kills: tuple[int, int]  # at whose begin a rank is killed

    @property
    def chaos(self) -> tuple[str, ...]:
        return tuple(f"kill:rank={_KILLED_RANK},step={step},times=1" for step in self.kills)


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """What is run."""

    shapes: tuple[Shape, ...]
    switches: tuple[Switch, ...]
    job: dict[str, Any]
    repeats: int
    productive_s: float
    interval_s: float
    leave_out: bool
    pilot_steps: int
    poll_s: float
    plain_ett: tuple[float, float]
    fingerprint: str  # of the file
    absent: tuple[str, ...] = ()  # switches that this version of the package does not have, or the quick form

    @classmethod
    def read(cls, path: Path, known: Mapping[str, Any], *, quick: bool) -> Campaign:
        """Args: known: a resolved recipe; a switch of a key that it does not have is absent."""
        text = path.read_text()
        workload = tomllib.loads(text)
        size = workload["quick" if quick else "full"]
        shapes = [Shape(**row) for row in workload["shape"]]
        switches = [Switch(**row) for row in workload["switch"]]
        present = [s for s in switches if _is_known(s, known) and (s.quick or not quick)]
        return cls(
            shapes=tuple(shape for shape in shapes if shape.quick or not quick),
            switches=tuple(present),
            absent=tuple(s.name for s in switches if s not in present),
            job=workload["job"],
            pilot_steps=workload["pilot_steps"],
            poll_s=workload["poll_s"],
            plain_ett=tuple(workload["plain_ett"]),
            fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16],
            **size,
        )

    def settings(self, shape: Shape, leg: Leg) -> dict[str, Any]:
        """Return what a leg sets of a recipe, but for its input and its length."""
        own: dict[str, Any] = {}
        if leg.variant != PLAIN:
            for switch in self.switches_of(shape):
                own |= switch.off if switch.name == leg.left_out else switch.on
        return self.job | {"data.format": shape.format} | shape.set | own

    def switches_of(self, shape: Shape) -> list[Switch]:
        return [switch for switch in self.switches if switch.name not in shape.without]

    def shares_caches(self, shape: Shape) -> bool:
        return any(CACHES in str(value) for switch in self.switches_of(shape) for value in switch.on.values())

    def legs(self) -> list[Leg]:
        """Return all legs, in the order in which they are run.

        The undisturbed one of each shape first: the others are compared with it. Then, repeat by repeat, those of one
        shape after those of another; who begins changes, so that what drifts with time is nobody's gain.
        """
        found = []
        for repeat in range(1, self.repeats + 1):
            for shape in self.shapes:
                variants = [PLAIN, OPTIMISED]
                if self.leave_out:
                    variants += [f"{_WITHOUT}{switch.name}" for switch in self.switches_of(shape)]
                first = (repeat - 1) % len(variants)
                if repeat == 1:
                    found.append(undisturbed(shape.name))
                found += [Leg(shape.name, variant, repeat) for variant in (*variants[first:], *variants[:first])]
        return found


def plan_job(step_s: float, productive_s: float, interval_s: float) -> JobPlan:
    """Return a job whose steps take `productive_s`, of so many seconds each, and that saves every `interval_s`.

    It fails at about a third and two thirds of its steps, half-way between two checkpoints, as failures do on average.
    """
    every = max(2, round(interval_s / step_s))
    steps = max(6 * every, round(productive_s / step_s))
    first, second = (steps * part // 3 // every * every + every // 2 + 1 for part in (1, 2))
    return JobPlan(steps=steps, every=every, kills=(first, second))


def median_step_s(spans_ns: Sequence[tuple[int, int]]) -> float:
    """Return the median time of the later half of a job's steps, from the begin of each to that of the next.

    What lies between two steps counts: so a job of so many steps takes so long.
    """
    begins = sorted(begin for begin, _ in spans_ns)[len(spans_ns) // 2 :]
    gaps = sorted(after - before for before, after in pairwise(begins))
    return gaps[len(gaps) // 2] / 1e9


def _is_known(switch: Switch, known: Mapping[str, Any]) -> bool:
    return all(_has(known, key.split(".")) for key in {**switch.on, **switch.off})


def _has(tree: Any, keys: Sequence[str]) -> bool:
    return not keys or (isinstance(tree, Mapping) and keys[0] in tree and _has(tree[keys[0]], keys[1:]))
