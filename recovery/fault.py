"""One fault on purpose: what happens, to whom, where, and how often. Values that are wrong are refused when built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Literal, get_args

from ett.checkpoint.interval import Interval, parse_interval
from ett.errors import ConfigError, UsageError
from ett.event_schema import SPAN_COMPONENTS
from ett.section import nearest

Kind = Literal[
    "kill",
    "exit",
    "raise",
    "hang",
    "stop",
    "slow",
    "disk_full",
    "store_slow",
    "store_fails",
    "corrupt",
    "lost_host",
    "clock",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
STORE_KINDS: tuple[Kind, ...] = ("disk_full", "store_slow", "store_fails")
ANY = -1  # rank: drawn from the seed
EACH = -2  # rank, attempt, gen: all of them
# Keys that only some kinds have; the others are everybody's.
OWN_KEYS: dict[str, tuple[Kind, ...]] = {
    "code": ("exit",),
    "how": ("hang",),
    "for": ("hang", "stop", "lost_host", *STORE_KINDS),
    "by": ("slow", "store_slow", "clock"),
    "steps": ("slow",),
    "ops": STORE_KINDS,
    "saves": STORE_KINDS,
    "tier": (*STORE_KINDS, "corrupt"),
}
COMMON_KEYS = ("rank", "step", "point", "phase", "mtbf", "seed", "attempt", "gen", "times")
HOWS = ("sleep", "gil", "collective", "reader")
TIERS = ("local", "remote")
SAVE_POINTS = ("ckpt_before_write", "ckpt_after_shard_write", "ckpt_before_commit", "ckpt_after_commit")
# "data": before a batch is read, by the thread that reads. Spans are points where they begin.
POINTS = ("step", "data", "startup", *SAVE_POINTS, *sorted(SPAN_COMPONENTS))
PHASES = {"save": "ckpt_save"}  # words for points that have another name
EXACT_POINTS = ("step", "data", *SAVE_POINTS)  # at exactly the step that is named; elsewhere: from that step on


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A failure of one process, or of what it depends on, at one place."""

    kind: Kind
    step: int | None = None  # None: the first time at the point
    point: str = "step"
    rank: int = 0  # or ANY, EACH
    attempt: int = 1  # of the launch; or EACH
    gen: int = 0  # generation of the attempt; or EACH
    times: int = 0  # at most, in the whole job; 0: as often as the rest says
    mtbf: str = ""  # such as "10m" or "200steps": mean time between faults of the job
    seed: int = 0  # of mtbf and of rank=any
    code: int = 1  # of exit
    how: str = "sleep"  # of hang
    for_s: float = 0.0  # how long it lasts; 0: for ever, or until the rest says
    by_s: float = 1.0  # of slow and store_slow: how much longer; of clock: how far it jumps, may be negative
    steps: int = 0  # of slow: for how many; 0: to the attempt's end
    ops: int = 0  # of the store: how many operations fail; 0: all while it lasts
    saves: int = 0  # of the store: how many saves it lasts; 0 with neither ops nor for: 1
    tier: str = "local"  # of the store: where there is one tier only, both words mean it

    def __str__(self) -> str:
        """The spec, with every value that the kind has and that is not the usual one."""
        return f"{self.kind}:{','.join(self._words())}"

    def _words(self) -> list[str]:
        words = [f"rank={_RANKS.get(self.rank, self.rank)}"]
        words += [] if self.step is None else [f"step={self.step}"]
        words += [f"code={self.code}"] if self.kind == "exit" else []
        words += [] if self.mtbf else [f"point={self.point}"]
        words += [f"attempt={_RANKS.get(self.attempt, self.attempt)}"]
        words += [f"gen={_RANKS.get(self.gen, self.gen)}"] if self.gen or self.times or self.mtbf else []
        for name in _LATER_FIELDS:
            value = getattr(self, name)
            if value != (_usual_tier(self.kind) if name == "tier" else _DEFAULTS[name]):
                # Exact, and never as 1e+06: a worker reads it again.
                shown = f"{Decimal(str(value)).normalize():f}" if isinstance(value, float) else str(value)
                words.append(f"{name.removesuffix('_s')}={shown}")
        return words

    @property
    def may_end_process(self) -> bool:
        """Return whether a process that it happened in may be gone for it; of others something else was the cause."""
        return self.kind not in ("slow", "clock") and not (self.kind in ("hang", "stop") and self.for_s)

    @property
    def mean(self) -> Interval | None:
        """Mean time, or number of steps, between two faults; None: it happens at a place."""
        return parse_interval(self.mtbf, "mtbf") if self.mtbf else None

    def may_be_of(self, *, rank: int, attempt: int, gen: int) -> bool:
        """Return whether that process may be the one; of rank=any only a draw says which is."""
        return self.rank in (rank, ANY, EACH) and self.attempt in (attempt, EACH) and self.gen in (gen, EACH)

    def is_at(self, point: str, step: int) -> bool:
        """Return whether a place is this fault's; `step` is the one that begins, or that is saved, or the last one."""
        if point != self.point or self.mtbf:
            return False
        is_exact = point in EXACT_POINTS and self.kind not in STORE_KINDS
        return self.step is None or (step == self.step if is_exact else step >= self.step)


_RANKS = {ANY: "any", EACH: "each"}
_LATER_FIELDS = ("times", "mtbf", "seed", "how", "for_s", "by_s", "steps", "ops", "saves", "tier")
_DEFAULTS = {field.name: field.default for field in fields(Fault)}
GRAMMAR = (
    f"{'|'.join(KINDS)}, then :rank=N,step=N and more (docs/chaos.md), such as kill:rank=1,step=120 or "
    "disk_full:step=40,saves=2"
)


def parse_fault(spec: str) -> Fault:
    """Return the fault that a --chaos value means. Raises: UsageError: names the value and the nearest word."""
    kind, colon, rest = spec.partition(":")
    if kind not in KINDS:
        raise UsageError(f"--chaos {spec!r}: unknown kind {kind!r}", expected=f"{nearest(kind, KINDS)}; {GRAMMAR}")
    known = [*COMMON_KEYS, *(key for key, kinds in OWN_KEYS.items() if kind in kinds)]
    given: dict[str, str] = {}
    for pair in rest.split(",") if colon else ():
        key, _, value = pair.partition("=")
        if key not in known:
            raise UsageError(f"--chaos {spec!r}: {key!r} has no meaning here", expected=nearest(key, known))
        if key in given or not value:
            raise UsageError(f"--chaos {spec!r}: {pair!r}", expected=f"{key}=VALUE, once; {GRAMMAR}")
        given[key] = value
    return _checked(_Words(spec, given).fault(kind), spec, given)


def _usual_tier(kind: Kind) -> str:
    return "remote" if kind in ("store_slow", "store_fails") else "local"


class _Words:
    """The keys and values of one spec."""

    def __init__(self, spec: str, given: Mapping[str, str]) -> None:
        self._spec, self._given = spec, given

    def fault(self, kind: Kind) -> Fault:
        is_drawn = "mtbf" in self._given
        usual = EACH if is_drawn or "times" in self._given else None
        return Fault(
            kind=kind,
            step=self._count("step") if "step" in self._given else None,
            point=self._point(kind),
            rank=self._count("rank", ANY if is_drawn else 0, {"any": ANY, "each": EACH}),
            attempt=self._count("attempt", usual or 1, {"each": EACH}),
            gen=self._count("gen", usual or 0, {"each": EACH}),
            times=self._count("times"),
            mtbf=self._mtbf(),
            seed=self._count("seed"),
            code=self._count("code", 1),
            how=self._one_of("how", HOWS, "sleep"),
            for_s=self._seconds("for", 0.0),
            by_s=self._seconds("by", 1.0, may_be_negative=kind == "clock"),
            steps=self._count("steps"),
            ops=self._count("ops"),
            saves=self._count("saves"),
            tier=self._one_of("tier", TIERS, _usual_tier(kind)),
        )

    def _point(self, kind: Kind) -> str:
        both = [word for word in ("point", "phase") if word in self._given]
        if len(both) > 1:
            raise UsageError(f"--chaos {self._spec!r}: a point and a phase", expected="one of them")
        if not both:
            if self._given.get("how") == "reader":
                return "data"
            return "ckpt_before_write" if kind in STORE_KINDS and "mtbf" not in self._given else "step"
        return PHASES.get(self._given[both[0]]) or self._one_of(both[0], POINTS, "step")

    def _count(self, key: str, usual: int = 0, words: Mapping[str, int] | None = None) -> int:
        value = self._given.get(key)
        if value is None:
            return usual
        if words and value in words:
            return words[value]
        if not value.isdecimal():
            more = "".join(f", or {word}" for word in words or ())
            raise UsageError(f"--chaos {self._spec!r}: {key} is {value!r}", expected=f"a number of 0 or more{more}")
        return int(value)

    def _seconds(self, key: str, usual: float, *, may_be_negative: bool = False) -> float:
        value = self._given.get(key)
        if value is None:
            return usual
        sign, text = (-1.0, value[1:]) if may_be_negative and value.startswith("-") else (1.0, value)
        try:
            found = parse_interval(f"{text}s" if text[-1:].isdecimal() else text, key)
        except ConfigError:
            found = None
        if found is None or found.kind != "time":
            raise UsageError(f"--chaos {self._spec!r}: {key} is {value!r}", expected="a time such as 0.5, 2s or 10m")
        return sign * found.seconds

    def _mtbf(self) -> str:
        value = "".join(self._given.get("mtbf", "").split())  # a plan is a text of specs with spaces between them
        try:
            is_known = not value or parse_interval(value, "mtbf").kind != "auto"
        except ConfigError:
            is_known = False
        if not is_known:
            raise UsageError(
                f"--chaos {self._spec!r}: mtbf is {value!r}", expected="a time such as 90s or 10m, or 200steps"
            )
        return value

    def _one_of(self, key: str, known: tuple[str, ...], usual: str) -> str:
        value = self._given.get(key, usual)
        if value not in known:
            raise UsageError(f"--chaos {self._spec!r}: unknown {key} {value!r}", expected=nearest(value, known))
        return value


def _checked(fault: Fault, spec: str, given: Mapping[str, str]) -> Fault:
    """Return the fault if its keys go together."""
    if fault.mtbf:
        for key in ("step", "point", "phase"):
            if key in given:
                raise UsageError(f"--chaos {spec!r}: mtbf and {key}", expected="a place or a rate, not both")
        if fault.how == "reader":
            raise UsageError(f"--chaos {spec!r}: how=reader with mtbf", expected="how=reader with step=N")
    elif fault.step is None and fault.point in ("step", "data"):
        raise UsageError(f"--chaos {spec!r}: no step", expected=f"step=N, phase=, point= or mtbf=; {GRAMMAR}")
    if fault.how == "reader" and fault.point != "data":
        raise UsageError(f"--chaos {spec!r}: how=reader at {fault.point}", expected="how=reader with step=N alone")
    if fault.step is not None and fault.point in ("startup", "restore"):
        raise UsageError(f"--chaos {spec!r}: a step at {fault.point}", expected="attempt=N: no step is known there yet")
    return fault
