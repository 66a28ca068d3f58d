"""The accounting rules asked instant by instant: slow, one clock, no sweep; what ett.accounting is compared with.

It reads the events of a case (seconds), with `steps` expanded, and knows the rules that such events can show:
R1 to R12, R14 and R15. Steps are numbered by their first cursor.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

Event = dict[str, Any]
WEAKEST_FIRST = ("scheduling", "initialization", "compilation", "wasted", "effective", "shutdown")
COMPONENT = {
    "init": "initialization", "restore": "initialization", "compile": "compilation", "final_save": "shutdown",
    "eval": "wasted", "ckpt_save": "wasted",
}  # fmt: skip
CLEAN = ("completed", "preempted", "suspended")
FOREVER = float("inf")


def written_at(event: Event) -> float:
    return event["e"] if event["ev"] == "step" else event["b"] if event["ev"] == "span" else event["t"]


class NaiveJob:
    def __init__(self, events: list[Event], as_of: float | None, stale_after: float = 90) -> None:
        limit = FOREVER if as_of is None else as_of
        self.events = [e for e in events if written_at(e) <= limit]
        ends = [e["e"] for e in self.events if e["ev"] == "span" and e["e"] <= limit]
        last = max([written_at(e) for e in self.events] + ends)
        job_ended = next((e for e in self.events if e["ev"] == "job_ended"), None)
        self.limit, self.status = limit, job_ended["status"] if job_ended else None
        self.start = 0
        if job_ended:
            self.end = job_ended["t"]
        else:
            now = last if as_of is None else as_of
            self.end = last if now - last > stale_after else now
        numbers = sorted({e["att"] for e in self.events if e["ev"] in ("attempt_started", "allocated")})
        self.attempts = [NaiveAttempt(self, n, is_last=n == numbers[-1]) for n in numbers]
        starts = {a.number: a.start for a in self.attempts if a.start is not None}
        for attempt in self.attempts:
            # A newer attempt proves that the older one is gone, whatever wrote for it later.
            attempt.gone = min([FOREVER, *(start for n, start in starts.items() if n > attempt.number)])
        high: float = -1
        for attempt in self.attempts:
            high = attempt.learn(high)

    def seconds(self) -> dict[str, Fraction]:
        edges = {Fraction(self.start), Fraction(self.end)}
        for attempt in self.attempts:
            edges |= {Fraction(t) for t in attempt.edges()}
        cut = self.kept()
        for step in (s for a in self.attempts for s in a.steps):
            edges |= {at(step, step["high"]), at(step, cut)}
        inside = sorted(t for t in edges if self.start <= t <= self.end)
        sums: dict[str, Fraction] = {}
        for begin, end in pairwise(inside):
            name = self.charged(begin, cut)
            sums[name] = sums.get(name, Fraction(0)) + end - begin
        return {name: value for name, value in sums.items() if value}

    def kept(self) -> float:
        if self.status is None:
            return FOREVER
        if self.status == "succeeded":
            last = self.attempts[-1] if self.attempts else None
            reached = [s for s in last.steps if s["complete"] and not s["doubted"]] if last else []
            restored = [e["cursor"] for e in last.own if e["ev"] == "restore"] if last else []
            if reached:
                return max(reached, key=lambda s: (s["e"], s["c1"]))["c1"]
            return restored[-1] if restored else FOREVER
        doubted = {id(e) for a in self.attempts for e in a.own if a.is_doubted(written_at(e))}
        commits = [e for e in self.events if e["ev"] == "ckpt_commit" and id(e) not in doubted]
        return max((e["cursor"] for e in commits), default=-1)

    def charged(self, now: Fraction, cut: float) -> str:
        alive = [a for a in self.attempts if a.start is not None and a.start <= now < min(a.end, a.gone)]
        if alive:
            component, step = alive[-1].charged(now)
            if component == "effective" and now >= at(step, cut):
                return "wasted"
            return component
        for attempt in self.attempts:
            if attempt.allocated is None or attempt.allocated > now:
                continue
            until = attempt.start if attempt.start is not None else min(attempt.end, attempt.gone)
            if now < until:
                return "initialization"
        return "scheduling"


def at(step: Event, cursor: float) -> Fraction:
    if cursor >= step["c1"]:
        return Fraction(step["e"])
    if cursor <= step["c0"]:
        return Fraction(step["b"])
    return step["b"] + Fraction(step["e"] - step["b"]) * Fraction(cursor - step["c0"], step["c1"] - step["c0"])


class NaiveAttempt:
    def __init__(self, job: NaiveJob, number: int, is_last: bool) -> None:
        self.number, self.gone = number, FOREVER
        own = [e for e in job.events if e.get("att") == number]
        self.own = own
        self.start = next((e["t"] for e in own if e["ev"] == "attempt_started"), None)
        self.allocated = next((e["t"] for e in own if e["ev"] == "allocated"), None)
        ended = next((e for e in own if e["ev"] == "attempt_ended"), None)
        self.is_clean = ended is not None and ended["reason"] in CLEAN
        self.faults = sorted(e["t"] for e in own if e["ev"] == "fault")
        if ended:
            self.end = ended["t"]
        elif (is_last and job.status is None) or self.start is None:
            self.end = job.end
        else:
            ends = [e["e"] for e in own if e["ev"] == "span" and e["e"] <= job.limit]
            self.end = max([written_at(e) for e in own] + ends)
        self.ranks = sorted({int(e["src"][1:]) for e in own if e.get("src", "sup") != "sup"}) or [0]
        self.steps = [dict(e, rank=int(e["src"][1:])) for e in own if e["ev"] == "step"]
        self.spans: list[tuple[int, float, float, str, int]] = []
        for order, e in enumerate(own):
            if e["ev"] in ("span", "span_open"):
                begin = e["b"] if e["ev"] == "span" else e["t"]
                until = e["e"] if e["ev"] == "span" and e["e"] <= job.limit else FOREVER
                until = min([until, self.end, *(f for f in self.faults if f > begin)])
                self.spans.append((int(e["src"][1:]), begin, until, e["name"], order))
        self.recover()
        self.opens = []
        for e in own:
            if e["ev"] == "step_begin":
                stop = min([self.end, *(f for f in self.faults if f > e["t"])])
                before = min([FOREVER, *(f for f in self.faults if f > e["t"])])
                mine = [s for s in self.steps if s["src"] == e["src"]]
                if not any(e["t"] < s["e"] <= before for s in mine):
                    self.opens.append((int(e["src"][1:]), e["t"], stop))

    def recover(self) -> None:
        """R11: a hole in time and cursor between two steps of a rank, without a fault or a span in it, was a step."""
        for rank in self.ranks:
            own = sorted((s for s in self.steps if s["rank"] == rank), key=lambda s: s["b"])
            for last, following in pairwise(own):
                begin, end = last["e"], following["b"]
                is_busy = any(r == rank and b < end and e > begin for r, b, e, _, _ in self.spans)
                has_fault = any(last["b"] < f <= end for f in self.faults)
                if begin < end and following["c0"] > last["c1"] and not is_busy and not has_fault:
                    ends = {"b": begin, "e": end, "c0": last["c1"], "c1": following["c0"]}
                    self.steps.append({"ev": "step", "src": f"r{rank}", "rank": rank} | ends)

    def stretch(self, begin: float) -> int:
        return sum(f <= begin for f in self.faults)

    def is_doubted(self, time: float) -> bool:
        """R9: somebody of an attempt after the first did not know its position, and no restore has said it since."""
        doubted = False
        for stretch in range(self.stretch(time) + 1):
            own = [e for e in self.own if self.stretch(written_at(e)) == stretch]
            doubted = doubted or (self.number > 1 and any(e["ev"] == "cursor_unknown" for e in own))
            restores = [e["t"] for e in own if e["ev"] == "restore"]
            if any(stretch < self.stretch(time) or t <= time for t in restores):
                doubted = False
        return doubted

    def learn(self, high: float) -> float:
        writers = {s["rank"] for s in self.steps} | {rank for rank, _, _ in self.opens}
        for step in self.steps:
            peers = [s for s in self.steps if self.stretch(s["b"]) == self.stretch(step["b"])]
            step["complete"] = all(any(s["rank"] == r and s["c0"] >= step["c0"] for s in peers) for r in writers)
        reached = high
        for step in self.steps:
            mine = [s for s in self.steps if s["rank"] == step["rank"] and s["b"] < step["b"]]
            earlier = [s["c1"] for s in mine if s["complete"] and not self.is_doubted(s["b"])]
            step["high"] = max([high, *earlier])
            step["doubted"] = self.is_doubted(step["b"])
            if step["complete"] and not step["doubted"]:
                reached = max(reached, step["c1"])
        return reached

    def edges(self) -> set[float]:
        found = {t for t in (self.start, self.end, self.allocated) if t is not None} | set(self.faults)
        for event in self.own:
            found |= {event[k] for k in ("t", "b", "e") if k in event}
        return found

    def charged(self, now: Fraction) -> tuple[str, Event]:
        writers = {s["rank"] for s in self.steps} | {rank for rank, _, _ in self.opens}
        verdicts = []
        for rank in self.ranks:
            component, step, is_covered = self.of_rank(rank, now)
            if is_covered or not writers or rank in writers:
                verdicts.append((WEAKEST_FIRST.index(component), rank, step))
        weakest, _, step = min(verdicts, key=lambda v: v[:2])
        return WEAKEST_FIRST[weakest], step

    def of_rank(self, rank: int, now: Fraction) -> tuple[str, Event, bool]:
        ends = [e["t"] for e in self.own if e["ev"] == "train_end" and e["src"] == f"r{rank}"]
        ends = ends or [e["t"] for e in self.own if e["ev"] == "train_end"]
        steps = [s for s in self.steps if s["rank"] == rank]
        opens = [o for o in self.opens if o[0] == rank]
        begins = [s["b"] for s in steps] + [o[1] for o in opens]
        stops = [min([s["e"], *(f for f in self.faults if f > s["b"])]) for s in steps]
        running: list[tuple[float, int, int, Any]] = []
        running += [(b, 1, n, name) for r, b, e, name, n in self.spans if r == rank and b <= now < e]
        running += [(s["b"], 0, n, s) for n, (s, e) in enumerate(zip(steps, stops, strict=True)) if s["b"] <= now < e]
        running += [(o[1], 0, 0, None) for o in opens if o[1] <= now < o[2]]
        if ends and now >= min(ends):
            return "shutdown", {}, bool(running)
        if running:
            return (*self.of_winner(max(running, key=lambda r: r[:3])[3], now, begins), True)
        fault = max((f for f in self.faults if f <= now), default=None)
        if fault is not None and not any(fault <= b <= now for b in begins):
            return "initialization", {}, False
        if not any(b <= now for b in begins):
            return "initialization", {}, False
        if any(e > now for e in [*stops, *(o[2] for o in opens)]):
            return "wasted", {}, False
        return "shutdown" if self.is_clean else "wasted", {}, False

    def of_winner(self, winner: Any, now: Fraction, begins: list[float]) -> tuple[str, Event]:
        if isinstance(winner, str):
            first = min(begins or [s["b"] for s in self.steps] + [o[1] for o in self.opens], default=FOREVER)
            return COMPONENT.get(winner) or ("wasted" if now >= first else "initialization"), {}
        if winner is None or not winner["complete"] or winner["doubted"]:
            return "wasted", {}
        return ("wasted" if now < at(winner, winner["high"]) else "effective"), winner
