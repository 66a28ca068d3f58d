"""A small simulator of a training job with failures: its parameters change, and a log of the changed job comes out.

`ett whatif` on the first log must give the account of the second one exactly. Times are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Event = dict[str, Any]
WIDTH = 3  # samples of a step


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Strikes `into_s` into the step that follows number `after_step`; `in_start_up`: into the imports instead."""

    after_step: int
    into_s: float
    cause: str
    how: Literal["failed", "preempted", "inprocess"] = "failed"
    in_start_up: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    num_steps: int = 40
    queue_s: float = 10
    restart_s: float = 5
    provision_s: float = 2
    imports_s: float = 8
    model_s: float = 4
    restore_s: float = 6
    compile_s: float = 20
    step_s: float = 2
    gap_s: float = 0.1
    save_s: float = 1
    commit_lag_s: float = 0.5  # after the save stopped blocking
    teardown_s: float = 3
    interval_steps: int = 7
    interval_s: float | None = None
    failures: tuple[Failure, ...] = ()
    status: Literal["succeeded", "failed"] = "succeeded"


class Simulation:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.now, self.events = plan, 0.0, []
        self.commits: list[tuple[float, int]] = []
        self.attempt, self.gen = 0, 0
        self.struck_at_once = False  # a failure whose place had been passed: it struck before its attempt did a step

    def case(self) -> dict[str, Any]:
        plan = self.plan
        self._add("job_submitted", src="sup", att=0)
        self.now += plan.queue_s
        self._start()
        resumed = 0
        for failure in plan.failures:
            if failure.in_start_up:
                self._span("imports", failure.into_s, is_open=True)
            else:
                self._prepare()
                resumed = self._train(self._restored(), failure)
            self._stop(failure, resumed)
        if plan.status == "succeeded":
            self._prepare()
            self._train(self._restored(), None)
            self._add("train_end")
            self._span("final_save", plan.save_s)
            self._add("attempt_ended", src="sup", reason="completed")
        self._add("job_ended", src="sup", att=0, status=plan.status)
        return {"id": "sim", "events": self.events}

    def _start(self) -> None:
        self.attempt, self.gen = self.attempt + 1, 0
        self._add("allocated", src="sup")
        self.now += self.plan.provision_s
        self._add("attempt_started", src="sup", world=1)

    def _prepare(self) -> None:
        if self.gen == 0:
            self._span("imports", self.plan.imports_s)
            self._span("model_build", self.plan.model_s)

    def _restored(self) -> int:
        done = max((step for t, step in self.commits if t <= round(self.now, 3)), default=0)
        self._span("restore", self.plan.restore_s)  # looks for a checkpoint, whether there is one or not
        return done

    def _train(self, resumed: int, failure: Failure | None) -> int:
        plan = self.plan
        self.struck_at_once |= failure is not None and failure.after_step <= resumed
        last = plan.num_steps if failure is None else max(failure.after_step, resumed)
        saved_at, has_compiled = self.now, False
        for number in range(resumed + 1, last + 1):
            begin = self.now
            if not has_compiled:
                self.now += 0.5
                self._span("compile", plan.compile_s)
                has_compiled = True
                self.now -= 0.5
            self.now += plan.step_s + number * 37 % 5 / 10
            self._step(begin, number)
            is_due = number % plan.interval_steps == 0
            if plan.interval_s is not None:
                is_due = round(self.now - saved_at, 6) >= plan.interval_s
            if is_due:
                self._span("ckpt_save", plan.save_s)
                saved_at = self.now
                self._commit(self.now + plan.commit_lag_s, number)
            self.now += plan.gap_s
        if failure is not None:
            self._add("step_begin", step=last + 1, c0=last * WIDTH)
            self.now += failure.into_s
        else:
            self.now -= plan.gap_s
        return last

    def _commit(self, at: float, number: int) -> None:
        at = round(at, 3)
        self.commits.append((at, number))
        self.events.append(self._event("ckpt_commit", at, cursor=number * WIDTH, step=number, id=f"c{number}-{at}"))

    def _stop(self, failure: Failure, reached: int) -> None:
        # A commit that was not whole when its life ended never is.
        self.commits = [commit for commit in self.commits if commit[0] <= round(self.now, 3)]
        self.events = [e for e in self.events if not (e["ev"] == "ckpt_commit" and e["t"] > round(self.now, 3))]
        if failure.how == "inprocess":
            self._add("fault", cause=failure.cause, **{"class": "infra"})
            self.now += self.plan.restart_s
            self.gen += 1
            return
        if failure.how == "preempted":
            self._span("shutdown", self.plan.teardown_s)
            self._commit(self.now, reached)
        self._add("attempt_ended", src="sup", reason=failure.how, cause=failure.cause, **{"class": "infra"})
        self.now += self.plan.restart_s
        if failure is not self.plan.failures[-1] or self.plan.status == "succeeded":
            self._start()

    def _step(self, begin: float, number: int) -> None:
        cursor = {"step": number, "c0": (number - 1) * WIDTH, "c1": number * WIDTH}
        self.events.append(self._event("step", self.now, b=begin, e=self.now, **cursor))

    def _span(self, name: str, length: float, *, is_open: bool = False) -> None:
        begin, self.now = self.now, self.now + length
        if is_open:
            self.events.append(self._event("span_open", begin, name=name))
        else:
            self.events.append(self._event("span", begin, b=begin, e=self.now, name=name))

    def _add(self, ev: str, *, src: str = "r0", **fields: Any) -> None:
        self.events.append(self._event(ev, self.now, src=src, **fields))

    def _event(self, ev: str, t: float, *, src: str = "r0", **fields: Any) -> Event:
        times = {name: round(fields.pop(name), 3) for name in ("b", "e") if name in fields}
        own = {"att": self.attempt, "src": src} | ({"gen": self.gen} if src != "sup" else {})
        return {"ev": ev, "t": round(t, 3), **own, **times, **fields}


def simulated(plan: Plan) -> tuple[dict[str, Any], bool]:
    """Return the log of the job as a case of tests/ett/conftest.py, and whether some failure struck at once."""
    simulation = Simulation(plan)
    return simulation.case(), simulation.struck_at_once
