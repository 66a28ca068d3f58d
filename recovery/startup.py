"""A start-up as a graph: nodes that say what they wait for and run beside each other, each a span of the job's log.

    startup = Startup(ett.init())
    data = startup.add("data_warmup", open_loader)
    model = startup.add("model_build", build_model)
    group = startup.add("process_group", join, on_main_thread=True)
    start = startup.add("restore", lambda: restore(model.value, data.value), after=(model, data, group))
    startup.run()

A node is declared after those that it waits for, so there is no circle, and the order of declaration is one in which
they can run: the order of the serial mode, and the order that decides which of several failures is raised.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from ett.errors import UsageError
from ett.raised import raised_by

log = logging.getLogger(__name__)
T = TypeVar("T")
Mode = Literal["parallel", "serial"]


class Recorder(Protocol):
    def startup_node(
        self, node: str, span: str, after: Sequence[str], *, is_on_main: bool
    ) -> AbstractContextManager[None]:
        """Return the span of a node; what `ett.init()` returns has it."""


class Node(Generic[T]):
    """One step of a start-up; made by `Startup.add`."""

    def __init__(
        self, name: str, span: str, after: Sequence[Node[Any]], work: Callable[[], T], *, is_on_main: bool = False
    ) -> None:
        self.name, self.span, self.is_on_main = name, span, is_on_main
        self.after = tuple(after)
        self.waits_for: frozenset[Node[Any]] = frozenset(self.after).union(*(node.waits_for for node in self.after))
        self._work: Callable[[], T] | None = work
        self._result: list[T] = []
        self.failure: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return bool(self._result)

    @property
    def value(self) -> T:
        """What the work returned. Raises: UsageError: it is not done, or the node that asks does not wait for it."""
        asking = _current.node
        if asking is not None and self not in asking.waits_for:
            raise UsageError(
                f"start-up node {asking.name!r} reads the value of {self.name!r}, which it does not wait for",
                expected="a node that is named in after=, or that one of those waits for",
                do=f"add it: startup.add({asking.name!r}, …, after=({self.name}, …))",
            )
        if not self._result:
            raise UsageError(f"start-up node {self.name!r} is not done", expected="its value is read after run()")
        return self._result[0]

    def execute(self, recorder: Recorder, *, is_on_main: bool) -> None:
        """Do the work in its span; what it raises is kept in `failure`."""
        work, self._work = self._work, None  # what the work holds must not outlive it: a lost process group, say
        assert work is not None, "a node runs once"
        with _running(self):
            self.failure = raised_by(lambda: self._record(recorder, work, is_on_main))

    def _record(self, recorder: Recorder, work: Callable[[], T], is_on_main: bool) -> None:
        after = [node.name for node in self.after]
        with recorder.startup_node(self.name, self.span, after, is_on_main=is_on_main):
            result = work()
        self._result.append(result)  # after the span's end: what waits for this node begins after it in the log, too


class Startup:
    """The nodes of one process's start; `run` runs them.

    A failure starts no further node; those that run are waited for, and the first failure by the order of declaration
    is raised. Nodes on the main thread run in the thread that calls `run`.
    """

    def __init__(self, recorder: Recorder, mode: Mode = "parallel") -> None:
        """Args: recorder: `ett.init()`. mode: "serial" runs one node after the other, to compare with."""
        self._recorder, self._is_serial = recorder, mode == "serial"
        self._nodes: list[Node[Any]] = []
        self._started: set[Node[Any]] = set()
        self._num_running = 0  # in threads
        self._is_given_up = False
        self._changed = threading.Condition()

    def add(
        self,
        name: str,
        work: Callable[[], T],
        *,
        after: Sequence[Node[Any]] = (),
        span: str = "",
        on_main_thread: bool = False,
    ) -> Node[T]:
        """Declare a node; it starts within `run`, once all of `after` are done.

        Args:
            work: reads what it needs by the `value` of nodes that it waits for.
            span: what its time is charged to (docs/events.md, "Span names"); its own name where not given.
            on_main_thread: for what sets something of its thread alone, or a handler of a signal.
        Raises: UsageError: the name is taken, or `after` has a node of another start-up.
        """
        if any(node.name == name for node in self._nodes):
            raise UsageError(f"two start-up nodes are named {name!r}", expected="one name for each node")
        for other in after:
            if not any(node is other for node in self._nodes):
                raise UsageError(
                    f"start-up node {name!r} waits for {other.name!r}, which this start-up does not have",
                    expected="nodes that the same Startup's add() returned",
                )
        node = Node(name, span or name, after, work, is_on_main=on_main_thread)
        with self._changed:
            self._nodes.append(node)
        return node

    def run(self, until: Node[Any] | None = None) -> None:
        """Run all nodes, or return once `until` is done while others run on; more may be added, and `run` called again.

        Raises: what the first node that failed, in the order of declaration, raised.
        """
        if self._is_serial:
            self._run_serially(until)
        else:
            self._run_in_threads(until)
        failed = [node for node in self._nodes if node.failure is not None]
        if not failed:
            return
        for node in failed[1:]:
            log.error("start-up node %s failed as well: %s", node.name, node.failure)
        raise cast(BaseException, failed[0].failure)

    def _run_serially(self, until: Node[Any] | None) -> None:
        for node in self._nodes:
            if node not in self._started:
                self._started.add(node)
                node.execute(self._recorder, is_on_main=True)
            if node.failure is not None or node is until:
                return

    def _run_in_threads(self, until: Node[Any] | None) -> None:
        with ExitStack() as interrupted:
            # By Ctrl-C, say: nothing more starts, and what runs in threads, maybe waiting for peers, is not waited for.
            interrupted.callback(self._give_up)
            while (mine := self._next_on_main(until)) is not None:
                mine.execute(self._recorder, is_on_main=True)
                if mine.failure is not None and not isinstance(mine.failure, Exception):
                    raise mine.failure
            interrupted.pop_all()

    def _next_on_main(self, until: Node[Any] | None) -> Node[Any] | None:
        """Wait for a node that this thread can run, and take it; None: there is nothing left to wait for."""
        with self._changed:
            while True:
                self._start_threads()
                mine = next((node for node in self._startable() if node.is_on_main), None)
                if mine is not None:
                    self._started.add(mine)
                if mine is not None or self._is_over(until):
                    return mine
                self._changed.wait()

    def _give_up(self) -> None:
        self._is_given_up = True

    def _is_over(self, until: Node[Any] | None) -> bool:
        if until is not None and until.is_done and not self._has_failed():
            return True
        return not self._num_running

    def _start_threads(self) -> None:
        """Start every node that waits for nothing any more and may run in any thread; within the lock."""
        for node in self._startable():
            if not node.is_on_main:
                self._started.add(node)
                name = f"ett-start-{node.name}"
                threading.Thread(target=self._run_one, args=(node,), name=name, daemon=True).start()
                self._num_running += 1

    def _run_one(self, node: Node[Any]) -> None:
        node.execute(self._recorder, is_on_main=False)
        with self._changed:
            self._num_running -= 1
            self._changed.notify()
            self._start_threads()

    def _startable(self) -> list[Node[Any]]:
        if self._is_given_up or self._has_failed():
            return []
        return startable(self._nodes, self._started)

    def _has_failed(self) -> bool:
        return any(node.failure is not None for node in self._nodes)


def startable(nodes: Sequence[Node[Any]], started: set[Node[Any]]) -> list[Node[Any]]:
    """Return, in their order, the nodes that have not started and wait for nothing any more."""
    return [node for node in nodes if node not in started and all(other.is_done for other in node.after)]


class _Current(threading.local):
    node: Node[Any] | None = None  # that this thread runs


_current = _Current()


@contextmanager
def _running(node: Node[Any]) -> Iterator[None]:
    outer, _current.node = _current.node, node
    try:
        yield
    finally:
        _current.node = outer
