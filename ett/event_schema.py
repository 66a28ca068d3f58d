"""The event log's vocabulary (docs/events.md): record, schema version, span names and what each is charged to."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal, NamedTuple

from ett.errors import CorruptState

VERSION = 1
NS = 1_000_000_000

Component = Literal["scheduling", "initialization", "compilation", "effective", "wasted", "shutdown"]
COMPONENTS: tuple[Component, ...] = (
    "scheduling",
    "initialization",
    "compilation",
    "effective",
    "wasted",
    "shutdown",
)

SPAN_COMPONENTS: dict[str, Component] = {
    **dict.fromkeys(
        (
            "imports",
            "device_init",
            "process_group",
            "rendezvous",
            "model_build",
            "data_warmup",
            "restore",
            "elastic_reconfig",
            "init",
        ),
        "initialization",
    ),
    "compile": "compilation",
    **dict.fromkeys(("final_save", "final_wait", "publish_final", "teardown", "shutdown"), "shutdown"),
    **dict.fromkeys(("eval", "ckpt_save", "publish", "data_stall"), "wasted"),
}

# Fields without which a record of that kind says nothing; a record that lacks one is skipped and counted.
_INTEGERS = {"step": ("b_mono", "e_mono")}
_NUMBERS = {"ckpt_commit": ("cursor",)}
_PRESENT = {"span_begin": ("id", "name"), "span_end": ("id",)}


COMMON_FIELDS = frozenset(
    {"v", "job", "att", "gen", "src", "rank", "host", "boot", "pid", "seq", "wall_ns", "mono_ns", "ev"}
)


class Record(NamedTuple):
    """One line of an event log. `rank` is the rank it speaks for, `data` the fields that only its kind has.

    `wall_ns` may jump; `mono_ns` compares only within one (host, boot). `file` is where it was read.
    """

    ev: str
    job: str
    att: int
    gen: int
    src: str
    rank: int | None
    host: str
    boot: str
    pid: int
    seq: int
    wall_ns: int
    mono_ns: int
    file: str
    data: Mapping[str, Any]

    @property
    def is_supervisors(self) -> bool:
        return self.src == "sup"

    @property
    def where(self) -> str:
        """Evidence a person can find again: kind, file and line number by `seq`."""
        return f"{self.ev} {self.file} seq {self.seq}"


def build_record(fields: Mapping[str, Any], file: str) -> Record | None:
    """Return the record of one parsed line, or None where a field that a rule needs is missing or of a wrong type."""
    ev, src = fields.get("ev"), fields.get("src")
    numbers = [fields.get("att", 0), fields.get("gen", 0), fields.get("pid", 0)]
    numbers += [fields.get(name) for name in ("seq", "wall_ns", "mono_ns")]
    if not isinstance(ev, str) or not isinstance(src, str) or not all(type(n) is int for n in numbers):
        return None
    if not has_fields_of_kind(ev, fields):
        return None
    att, gen, pid, seq, wall_ns, mono_ns = numbers
    job, host, boot = (str(fields.get(name, "")) for name in ("job", "host", "boot"))
    rank = fields["rank"] if type(fields.get("rank")) is int else rank_of_source(src)
    data = {name: value for name, value in fields.items() if name not in COMMON_FIELDS}
    return Record(ev, job, att, gen, src, rank, host, boot, pid, seq, wall_ns, mono_ns, file, data)


def check_version(version: object, file: str) -> None:
    """Raises: CorruptState: the version is not the one that this reader knows."""
    if version != VERSION:
        raise CorruptState(
            f"{file}: a record of event schema version {version!r}",
            expected=f"version {VERSION}; skipping what we cannot read would make every figure wrong",
            do="read this log with the ett that wrote it, or a newer one",
        )


def has_fields_of_kind(ev: str, fields: Mapping[str, Any]) -> bool:
    if not all(type(fields.get(name)) is int for name in _INTEGERS.get(ev, ())):
        return False
    if not all(is_number(fields.get(name)) for name in _NUMBERS.get(ev, ())):
        return False
    if any(fields.get(name) is None for name in _PRESENT.get(ev, ())):
        return False
    return ev != "step" or has_global_cursor(fields) or has_samples(fields)


def has_global_cursor(fields: Mapping[str, Any]) -> bool:
    """True where the writer of a step knew the global sample counts before and after it."""
    return is_number(fields.get("c0")) and is_number(fields.get("c1"))


def has_samples(fields: Mapping[str, Any]) -> bool:
    return is_number(fields.get("samples")) and type(fields.get("step")) is int


def is_number(value: object) -> bool:
    """True for a finite int or float; JSON's true and Python's json.loads("NaN") are none."""
    return type(value) is int or (type(value) is float and isfinite(value))


def rank_of_source(src: str) -> int | None:
    """Return 3 for "r3", None for a source that is no rank."""
    return int(src[1:]) if src[:1] == "r" and src[1:].isdecimal() else None
