"""Event logs of hand-computed cases: a case's events (times in seconds) become files in the schema of docs/events.md.

Sources on the supervisor's host share its clock; a source with a clock_sync, or a rank with a proc_start in that
attempt, gets a host and a clock of its own. Times are as the source recorded them.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ett import ring
from ett.accounting import JobAccount
from ett.event_line import encode_line
from ett.ring_drain import RingDrain
from ett.ring_folder import ring_folder

# pytest's importlib mode adds no folder to the path: a test file may use another one's strategies.
sys.path.append(str(Path(__file__).parent))

EPOCH_S = 1_900_000_000
NS = 1_000_000_000
HOME_MONO_S, AWAY_MONO_S = 1_000, 6_000
NOT_FIELDS = {"ev", "src", "att", "t", "b", "e", "mono", "mono_b", "mono_e", "seq", "offset", "gen"}

Case = Mapping[str, Any]
Event = Mapping[str, Any]
Files = dict[str, list[dict[str, Any]]]
WriteCase = Callable[[Case, Path], list[str]]


class CaseLog:
    """Turns one case into records, file by file, in the order in which their writers wrote them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.events = list(_expanded(e for e in case["events"] if not isinstance(e, str)))
        self.torn = [e.encode() for e in case["events"] if isinstance(e, str)]
        self._synced = {e["src"] for e in self.events if e["ev"] == "clock_sync"}
        self._spawned = {(e["src"], e["att"]) for e in self.events if e["ev"] == "proc_start"}
        self._started = {e["att"]: e for e in self.events if e["ev"] == "attempt_started"}
        self._span_ids = itertools.count(1)
        self._files: Files = {}

    def files(self) -> Files:
        """Return path under events/ -> its records, with `seq`."""
        for event in self.events:
            self._add(event)
        for records in self._files.values():
            _number(records)
        if any("seq" in e for e in self.events):
            return self._files
        return {path: sorted(records, key=lambda r: r["seq"]) for path, records in self._files.items()}

    def write(self, folder: Path) -> None:
        for name, records in self.files().items():
            path = folder / "events" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            torn = b"\n".join(self.torn) if path.name.startswith("r0-") else b""
            path.write_bytes(b"".join(map(encode_line, records)) + torn)

    def flags(self) -> list[str]:
        """Return the flags of `ett report` that the case needs."""
        flags = []
        if "as_of" in self.case:
            flags += ["--as-of", str(EPOCH_S + self.case["as_of"])]
        if "window" in self.case:
            flags += ["--window", *(str(EPOCH_S + t) for t in self.case["window"])]
        for begin, end in self.case.get("exclude", ()):
            flags += ["--exclude", str(EPOCH_S + begin), str(EPOCH_S + end)]
        if self.case.get("policy", {}).get("infer_compile_from_first_step"):
            flags.append("--infer-compile")
        return flags

    def _add(self, event: Event) -> None:
        kind = event["ev"]
        fields = {name: value for name, value in event.items() if name not in NOT_FIELDS}
        if kind in ("span", "span_open"):
            begin = event["b"] if kind == "span" else event["t"]
            fields = {"blocking": True} | fields | {"id": next(self._span_ids)}
            self._emit(event, "span_begin", begin, begin, fields)
            if kind == "span":
                self._emit(event, "span_end", event["e"], event["e"], fields)
        elif kind == "step":
            origin = self._clock(event)[2]
            begin, end = event.get("mono_b", event["b"]), event.get("mono_e", event["e"])
            ends = {"b_mono": _ns(origin + begin), "e_mono": _ns(origin + end)}
            world = self._started.get(event["att"], {}).get("world", 1)
            self._emit(event, kind, event["e"], end, {"step": int(event["c0"]), "world": world} | fields | ends)
        elif kind == "clock_sync":
            own = event["t"] + event["offset"]
            sync = {"peer": "sup", "offset_ns": _ns(event["offset"]), "error_ns": 0} | fields
            self._emit({"att": 1} | dict(event), kind, own, own, sync)
        else:
            if kind == "proc_start":
                fields["parent_wall_ns"] = _ns(EPOCH_S + self._started[event["att"]]["t"])
            if kind == "ckpt_commit":
                fields.setdefault("id", f"ckpt-{event['cursor']}")
            self._emit(event, kind, event["t"], event.get("mono", event["t"]), fields)

    def _clock(self, event: Event) -> tuple[str, str, int]:
        src, att = event.get("src", "sup"), event.get("att", 0)
        if src in self._synced:
            return f"host-{src}", f"boot{src:0>4}", AWAY_MONO_S
        if (src, att) in self._spawned:
            return f"host-{src}-{att}", f"b{att:03}{src:0>4}", AWAY_MONO_S
        return "host-0", "boot0000", HOME_MONO_S

    def _emit(self, event: Event, ev: str, wall_s: float, mono_s: float, fields: Mapping[str, Any]) -> None:
        src, att = event.get("src", "sup"), event.get("att", 0)
        host, boot, origin = self._clock(event)
        pid = 100 if src == "sup" else 1000 * att + int(src[1:])
        record = {
            "v": 1, "job": self.case["id"].lower(), "att": att, "gen": event.get("gen", 0), "src": src, "host": host,
            "boot": boot, "pid": pid, "seq": event.get("seq"), "wall_ns": _ns(EPOCH_S + wall_s),
            "mono_ns": _ns(origin + mono_s), "ev": ev, **fields,
        }  # fmt: skip
        if src != "sup":
            record["rank"] = int(src[1:])
        name = f"{0 if src == 'sup' else att}/{src}-{host}-{pid}-{boot}.jsonl"
        self._files.setdefault(name, []).append(record)


def _number(records: list[dict[str, Any]]) -> None:
    given = {r["seq"] for r in records if r["seq"] is not None}
    free = (n for n in itertools.count() if n not in given)
    for record in sorted(records, key=lambda r: (r["mono_ns"], r["ev"] != "job_submitted", r["ev"] == "job_ended")):
        if record["seq"] is None:
            record["seq"] = next(free)


def _expanded(events: Iterator[Event]) -> Iterator[Event]:
    """`steps` is n complete steps of dt seconds from t0; `drop` are the indices whose record was lost."""
    for event in events:
        if event["ev"] != "steps":
            yield event
            continue
        width, dropped = event.get("dc", 1), set(event.get("drop", ()))
        common = {k: v for k, v in event.items() if k in ("att", "src", "gen")} | {"ev": "step"}
        for index in range(event["n"]):
            begin, cursor = event["t0"] + index * event["dt"], event["c0"] + index * width
            if index not in dropped:
                yield common | {"b": begin, "e": begin + event["dt"], "c0": cursor, "c1": cursor + width}


def _ns(seconds: float) -> int:
    return round(seconds * 1000) * (NS // 1000)


@pytest.fixture(scope="session")
def case_log() -> Callable[[Case], CaseLog]:
    return CaseLog


@pytest.fixture(scope="session")
def write_case() -> WriteCase:
    """Write a case's log into a folder and return the flags of `ett report` that it needs."""

    def write(case: Case, folder: Path) -> list[str]:
        log = CaseLog(case)
        log.write(folder)
        return log.flags()

    return write


@pytest.fixture(scope="session")
def naive_job() -> Any:
    """The reference that asks the rules instant by instant (tests/reference/naive_partition.py)."""
    return _reference("naive_partition").NaiveJob


@pytest.fixture(scope="session")
def otlp() -> Any:
    """The OTLP receiver's module (tests/reference/otlp_receiver.py)."""
    return _reference("otlp_receiver")


def _reference(name: str) -> Any:
    path = Path(__file__).parents[1] / "reference" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def everything() -> Callable[[JobAccount | None], Any]:
    """All that an account says, to be compared; a step's high-water mark is how it was found, not what was found."""
    return _everything


def _everything(found: JobAccount | None) -> Any:
    """All that an account says; a step's high-water mark is how it was found, not what was found."""
    if found is None:
        return None
    steps = [[_plain(step) for step in t.steps] for t in found.timelines]
    pieces = [[_piece(p) for p in pieces] for pieces in (found.pieces, found.at_risk, found.at_risk_remote)]
    timelines = [
        (t.attempt.number, t.attempt.end_ns, t.high, t.last_cursor, t.faults, t.unknown) for t in found.timelines
    ]
    rest = (found.window, found.interruptions, found.exclusions, found.clocks, found.problems, found.flags)
    return (found.job, pieces, steps, timelines, rest)


def _plain(step: Any) -> tuple[object, ...] | None:
    if step is None:
        return None
    return tuple(getattr(step, name) for name in type(step).__dataclass_fields__ if name != "high")


def _piece(piece: Any) -> tuple[object, ...]:
    return (*piece._replace(step=None), _plain(piece.step))


@pytest.fixture(params=["native", "python"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two writes a record of whole numbers: every guarantee is that of both."""
    if request.param == "python":
        for module in ("ett.event_line", "ett.ring"):
            monkeypatch.setattr(f"{module}.NATIVE", None)
    elif ring.NATIVE is None:
        pytest.skip("the extension is not built")
    return str(request.param)


@pytest.fixture
def job_dir(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "j"
    made.mkdir()
    yield made
    assert not ring_folder(made).exists(), "a test must leave nothing in /dev/shm"


@pytest.fixture
def drain(job_dir: Path) -> Iterator[RingDrain]:
    started = RingDrain(job_dir)
    started.start()
    yield started
    assert started.stop() == 0
