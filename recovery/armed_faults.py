"""The faults of one process: noticed at their places, told to the log, then let happen (docs/chaos.md)."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ett.checkpoint.store import Store
from ett.recovery import fault_actions
from ett.recovery.fault import EACH, STORE_KINDS, Fault
from ett.recovery.fault_draws import FaultPlace, drawn_rank, draws
from ett.recovery.fault_plan import FaultPlan
from ett.recovery.faulty_store import FaultyStore, StoreStrike

Emit = Callable[..., None]


def arm(chaos: str, job_dir: Path | None, **place: int) -> ArmedFaults | None:
    """Return the faults that `chaos`, a plan as a text, has for the process of a FaultPlace; None: it has none."""
    who = FaultPlace(**place)
    plan = FaultPlan.parse(chaos.split()).for_process(rank=who.rank, attempt=who.attempt, gen=who.gen)
    return ArmedFaults(plan, who, job_dir) if plan.faults else None


class ArmedFaults:
    """`fire` and `operate` may be called by any thread."""

    def __init__(self, plan: FaultPlan, place: FaultPlace, job_dir: Path | None) -> None:
        self._place, self._job_dir = place, job_dir
        self._armed = [_Armed(fault, place) for fault in plan.faults]
        self._lock = threading.Lock()
        self._stores: list[FaultyStore] = []
        self._strikes: list[StoreStrike] = []
        self._slow: list[tuple[Fault, int]] = []  # and the step with which it ends; 0: none
        self._emit: Emit = lambda ev, **fields: None

    def begin(self, emit: Emit) -> None:
        """Say what was drawn; `emit` writes records from now on."""
        self._emit = emit
        for armed in self._armed:
            if armed.draw is not None:
                fault, draw = armed.fault, armed.draw
                unit = "s" if fault.mean and fault.mean.kind == "time" else "steps"
                emit("fault_drawn", fault=str(fault), of_rank=draw.rank, **{f"after_{unit}": round(draw.after, 3)})

    def fire(self, point: str, step: int) -> None:
        """Let happen what the plan has for this place. Raises: InjectedError."""
        if point == "step":
            self._be_slow(step)
        if point == "ckpt_before_write":
            for strike in self._strikes:
                strike.begin_save(step)
        with self._lock:
            # Before there is a store nothing can be damaged: a start may choose its commit first.
            able = [armed for armed in self._armed if self._stores or armed.fault.kind != "corrupt"]
            due = [armed.fault for armed in able if armed.is_due(point, step)]
        for fault in due:
            if self._is_left(fault):
                self._happen(fault, point, step)

    def wrap(self, store: Store, tier: str) -> Store:
        """Return the store with this process's faults in it. Args: tier: "local" or "remote"."""
        wrapped = FaultyStore(store, tier, self.operate)
        self._stores.append(wrapped)
        return wrapped

    def operate(self, tier: str, verb: str, name: str) -> None:
        """Let happen what is in force for an operation of a store. Raises: OSError, Unreachable: the operation's."""
        known = tier if len({store.tier for store in self._stores}) > 1 else None
        for strike in self._strikes:
            with self._lock:
                is_hit = strike.hits(verb, known)
                is_first, strike.is_told = is_hit and not strike.is_told, strike.is_told or is_hit
            if is_first:
                self._tell(strike.fault, verb, 0, tier=tier, name=name)
            if is_hit:
                strike.act(f"{tier} {name}")

    def _happen(self, fault: Fault, point: str, step: int) -> None:
        if fault.kind in STORE_KINDS:
            strike = StoreStrike(fault)
            if point == "ckpt_before_write":
                strike.begin_save(step)
            self._strikes.append(strike)
        elif fault.kind == "corrupt":
            self._corrupt(fault, point, step)
        elif fault.kind == "slow":
            self._tell(fault, point, step)
            self._slow.append((fault, step + fault.steps if fault.steps else 0))
            self._be_slow(step)
        else:
            self._tell(fault, point, step)
            fault_actions.act(fault)

    def _be_slow(self, step: int) -> None:
        for fault, until in self._slow:
            if not until or step < until:
                time.sleep(fault.by_s)

    def _corrupt(self, fault: Fault, point: str, step: int) -> None:
        tiers = {store.tier for store in self._stores}
        for store in self._stores:
            if (fault.tier == store.tier or len(tiers) == 1) and (name := store.damage_newest()):
                self._tell(fault, point, step, tier=store.tier, name=name)
                return
        _say(f"nothing to corrupt for {fault}")

    def _tell(self, fault: Fault, point: str, step: int, **fields: Any) -> None:
        _say(str(fault))
        self._emit("fault_injected", fault=str(fault), kind=fault.kind, point=point, step=step, **fields)

    def _is_left(self, fault: Fault) -> bool:
        """Return whether the fault may happen once more in this job, and take one of its times."""
        if not fault.times or self._job_dir is None:
            return True
        folder = self._job_dir / "chaos"
        folder.mkdir(exist_ok=True)
        name = hashlib.sha256(str(fault).encode()).hexdigest()[:16]
        for number in range(fault.times):
            try:
                os.close(os.open(folder / f"{name}-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            return True
        return False


class _Armed:
    """A fault that waits for its place."""

    def __init__(self, fault: Fault, place: FaultPlace) -> None:
        self.fault, self._place = fault, place
        self._draws = draws(fault, place) if fault.mean is not None else None
        self.draw = next(self._draws) if self._draws is not None else None
        self._is_ours = fault.mean is not None or drawn_rank(fault, place) in (place.rank, EACH)
        self._has_happened = False
        self._begun_s = time.monotonic()
        self._first_step: int | None = None

    def is_due(self, point: str, step: int) -> bool:
        if self._draws is not None:
            return point == "step" and self._is_drawn(step)
        if self._has_happened or not self._is_ours or not self.fault.is_at(point, step):
            return False
        self._has_happened = True
        return True

    def _is_drawn(self, step: int) -> bool:
        assert self._draws is not None and self.draw is not None and self.fault.mean is not None
        self._first_step = step if self._first_step is None else self._first_step
        passed = float(step - self._first_step)
        if self.fault.mean.kind == "time":
            passed = time.monotonic() - self._begun_s
        is_ours = False
        while self.draw.after <= passed:
            is_ours = is_ours or self.draw.rank in (self._place.rank, EACH)
            self.draw = next(self._draws)
        return is_ours


def _say(text: str) -> None:
    sys.stderr.write(f"ett chaos: {text}\n")
    sys.stderr.flush()
    sys.stdout.flush()
