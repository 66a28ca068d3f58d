"""A start-up graph: what runs when, which failure is raised, and what of it the log and its account say."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.accounting import account
from ett.errors import ConfigError, UsageError
from ett.event_log import EventWriter
from ett.event_reader import read_folder
from ett.recovery.startup import Mode, Node, Startup
from ett.startup_log import read_starts
from ett.startup_path import start_path
from ett.tracker import Run, RunIdentity

MODES: tuple[Mode, ...] = ("parallel", "serial")
LONG_S = 30.0


class Recorded:
    """A recorder that keeps the order of begins and ends, as the log does."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    @contextmanager
    def startup_node(self, node: str, span: str, after: Sequence[str], *, is_on_main: bool) -> Iterator[None]:
        with self._lock:
            self.said.append(("begin", node))
        try:
            yield
        finally:
            with self._lock:
                self.said.append(("end", node))

    def place(self, what: str, node: Node[Any]) -> int:
        return self.said.index((what, node.name))


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[tuple[int, ...], bool]]:
    """Of each node which earlier ones it waits for, and whether it runs on the main thread."""
    num_nodes = draw(st.integers(1, 7))
    return [
        (tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else ())), draw(st.booleans()))
        for number in range(num_nodes)
    ]


def declared(startup: Startup, graph: list[tuple[tuple[int, ...], bool]], fails: set[int]) -> list[Node[int]]:
    nodes: list[Node[int]] = []
    for number, (after, is_on_main) in enumerate(graph):
        waits_for = [nodes[other] for other in after]

        def work(number: int = number, waits_for: list[Node[int]] = waits_for, main: bool = is_on_main) -> int:
            assert not main or threading.current_thread() is threading.main_thread()
            if number in fails:
                raise ConfigError(f"node {number}")
            return number + sum(node.value for node in waits_for)

        nodes.append(startup.add(f"n{number}", work, after=waits_for, on_main_thread=is_on_main))
    return nodes


def sums(graph: list[tuple[tuple[int, ...], bool]]) -> list[int]:
    found: list[int] = []
    for number, (after, _) in enumerate(graph):
        found.append(number + sum(found[other] for other in after))
    return found


@given(graph=graphs(), mode=st.sampled_from(MODES))
@settings(max_examples=60, deadline=None)
def test_a_node_begins_when_all_that_it_waits_for_have_ended(
    graph: list[tuple[tuple[int, ...], bool]], mode: Mode
) -> None:
    recorded = Recorded()
    startup = Startup(recorded, mode)
    nodes = declared(startup, graph, fails=set())
    startup.run()
    assert [node.value for node in nodes] == sums(graph)
    for node in nodes:
        assert all(recorded.place("end", other) < recorded.place("begin", node) for other in node.after)


@pytest.mark.slow
@given(graph=graphs(), data=st.data(), mode=st.sampled_from(MODES))
@settings(max_examples=60, deadline=None)
def test_of_several_failures_the_first_declared_is_raised_and_nothing_that_waits_for_one_runs(
    graph: list[tuple[tuple[int, ...], bool]], data: st.DataObject, mode: Mode
) -> None:
    fails = data.draw(st.sets(st.sampled_from(range(len(graph))), min_size=1))
    recorded = Recorded()
    startup = Startup(recorded, mode)
    nodes = declared(startup, graph, fails)
    with pytest.raises(ConfigError) as raised:
        startup.run()
    ran = [number for number in range(len(graph)) if ("begin", f"n{number}") in recorded.said]
    assert raised.value.fact == f"node {min(fails & set(ran))}"
    assert not [n for n in ran for other in fails if nodes[other] in nodes[n].waits_for]
    assert all(("end", f"n{number}") in recorded.said for number in ran)  # none is left running


def test_serial_is_the_order_of_declaration() -> None:
    recorded = Recorded()
    startup = Startup(recorded, "serial")
    declared(startup, [((), False), ((), True), ((0,), False)], fails=set())
    startup.run()
    assert [node for what, node in recorded.said if what == "begin"] == ["n0", "n1", "n2"]


def test_nodes_that_need_nothing_of_each_other_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    startup = Startup(Recorded())
    for name, is_on_main in (("a", False), ("b", False), ("c", True)):
        startup.add(name, lambda: meeting.wait(LONG_S), on_main_thread=is_on_main)
    startup.run()


def test_what_a_main_node_was_waited_for_by_starts_while_the_next_main_node_runs() -> None:
    begun = threading.Event()
    startup = Startup(Recorded())
    first = startup.add("first", lambda: None, on_main_thread=True)
    startup.add("behind", begun.set, after=[first])
    startup.add("second", lambda: begun.wait(LONG_S), on_main_thread=True)
    startup.run()


def test_a_thread_starts_what_waits_for_its_node_while_the_main_thread_is_busy() -> None:
    begun = threading.Event()
    startup = Startup(Recorded())
    ahead = startup.add("ahead", lambda: None)
    startup.add("behind", begun.set, after=[ahead])
    busy = startup.add("busy", lambda: begun.wait(LONG_S), on_main_thread=True)
    startup.run()
    assert busy.value


def test_more_may_be_added_while_others_run() -> None:
    may_end = threading.Event()
    startup = Startup(Recorded())
    slow = startup.add("slow", lambda: may_end.wait(LONG_S))
    imports = startup.add("imports", lambda: "module", on_main_thread=True)
    startup.run(until=imports)
    assert (imports.value, slow.is_done) == ("module", False)
    startup.add("beside", may_end.set)
    last = startup.add("last", lambda: slow.value, after=[slow])
    startup.run()
    assert last.value


def test_ctrl_c_waits_for_no_thread() -> None:
    never, begun = threading.Event(), threading.Event()

    def wait_for_peers() -> None:
        begun.set()
        never.wait(LONG_S)

    def interrupted() -> None:
        begun.wait(LONG_S)
        raise KeyboardInterrupt

    startup = Startup(Recorded())
    stuck = startup.add("stuck", wait_for_peers)
    behind = startup.add("behind", lambda: None, after=[stuck])
    startup.add("interrupted", interrupted, on_main_thread=True)
    with pytest.raises(KeyboardInterrupt):
        startup.run()
    never.set()
    assert not behind.is_done


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_a_node_does_not_wait_for_is_refused_however_fast_it_comes(mode: Mode) -> None:
    startup = Startup(Recorded(), mode)
    other = startup.add("other", lambda: 1)
    startup.add("hasty", lambda: other.value)
    with pytest.raises(UsageError, match="'hasty' reads the value of 'other', which it does not wait for"):
        startup.run()


def test_a_value_before_its_time_is_refused() -> None:
    startup = Startup(Recorded())
    with pytest.raises(UsageError, match="'late' is not done"):
        _ = startup.add("late", lambda: 1).value


def test_two_nodes_of_one_name_are_refused() -> None:
    startup = Startup(Recorded())
    startup.add("a", lambda: 1)
    with pytest.raises(UsageError, match="two start-up nodes are named 'a'"):
        startup.add("a", lambda: 2)


def test_a_node_of_another_start_up_is_refused() -> None:
    foreign = Startup(Recorded()).add("a", lambda: 1)
    with pytest.raises(UsageError, match="waits for 'a', which this start-up does not have"):
        Startup(Recorded()).add("b", lambda: 2, after=[foreign])


@pytest.mark.parametrize("mode", MODES)
def test_the_six_components_sum_to_the_wall_time_over_overlapping_nodes(tmp_path: Path, mode: Mode) -> None:
    supervisor = EventWriter(tmp_path / "events" / "0", "sup", {"job": "j"})
    supervisor.emit("job_submitted", att=0)
    supervisor.emit("allocated", att=1, nodes=1)
    supervisor.emit("attempt_started", att=1, nodes=1, world=1)
    run = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path))
    meeting = threading.Barrier(2 if mode == "parallel" else 1)
    startup = Startup(run, mode)
    imports = startup.add("imports", lambda: None, on_main_thread=True)
    model = startup.add("model_build", lambda: meeting.wait(LONG_S), after=[imports])
    data = startup.add("open_files", lambda: meeting.wait(LONG_S), after=[imports], span="data_warmup")
    startup.add("compile_cache", lambda: None, after=[model, data], span="compile", on_main_thread=True)
    startup.run()
    with run.step(samples=1, global_samples=1):
        pass
    run.close()
    supervisor.emit("attempt_ended", att=1, reason="completed")
    supervisor.emit("job_ended", att=0, status="succeeded")
    supervisor.close()
    log = read_folder(tmp_path)
    assert log.columns is None or log.columns.is_exact  # nodes keep the log one that the native rules can tell
    found = account(log, as_of_ns=2**62)
    assert found is not None
    edges = [(piece.begin_ns, piece.end_ns) for piece in found.pieces]
    assert [begin for begin, _ in edges[1:]] == [end for _, end in edges[:-1]]
    assert (edges[0][0], edges[-1][1]) == (found.window.start_ns, found.window.end_ns)
    named = {(piece.component, piece.reason) for piece in found.pieces}
    assert {("initialization", "model_build"), ("compilation", "compile"), ("effective", "new_data")} <= named
    files = [(str(path.relative_to(tmp_path / "events")), path.read_bytes()) for path in tmp_path.rglob("*.jsonl")]
    (start,) = read_starts(files)
    path = start_path(start)
    assert path is not None
    waited = {n.node.name: {start.nodes[i].name for i in n.waited_for} for n in path.nodes}
    assert {"model_build", "open_files"} <= waited["compile_cache"]
    assert waited["model_build"] == {"imports"}
