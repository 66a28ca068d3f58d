"""The critical path of a start, and what would gain, of graphs whose times are known."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.event_line import encode_line
from ett.startup_log import PROCESS, StartedNode, StartedRank, read_starts
from ett.startup_path import start_path
from ett.startup_report import slowest, startup_json, startup_text
from ett.startup_svg import startup_svg

S = 1_000_000_000


def node(name: str, begin_s: float, end_s: float, *after: str, main: bool = False) -> StartedNode:
    return StartedNode(
        name=name, span=name, begin_ns=round(begin_s * S), end_ns=round(end_s * S), after=after, is_on_main=main
    )


def start(*nodes: StartedNode, first_step_s: float) -> StartedRank:
    process = node(PROCESS, 0, 0.1, main=True)
    return StartedRank(
        job="j",
        attempt=1,
        generation=0,
        rank=0,
        begin_ns=0,
        first_step_ns=round(first_step_s * S),
        nodes=(process, *nodes),
    )


OVERLAPPED = start(
    node("plan", 0.1, 0.5),
    node("imports", 0.1, 2.1, main=True),
    node("group", 2.1, 2.4, "imports"),
    node("model", 2.1, 3.1, "imports"),
    node("restore", 3.2, 4.2, "model", "group", "plan", main=True),
    first_step_s=4.3,
)


def gains(start: StartedRank) -> dict[str, float]:
    path = start_path(start)
    assert path is not None
    return {found.node.name: round(found.gain_ns / S, 6) for found in path.nodes}


def test_the_critical_path_is_what_the_first_step_waited_for() -> None:
    path = start_path(OVERLAPPED)
    assert path is not None
    names = [OVERLAPPED.nodes[place].name for place in path.critical]
    assert names == [PROCESS, "imports", "model", "restore"]
    assert (path.total_ns, path.serial_ns, path.lag_ns) == (round(4.3 * S), round(4.8 * S), round(0.2 * S))


def test_what_is_beside_the_path_gains_nothing() -> None:
    found = gains(OVERLAPPED)
    assert (found["plan"], found["group"]) == (0, 0)


def test_a_gain_ends_where_another_node_becomes_critical() -> None:
    found = gains(OVERLAPPED)
    assert (found["restore"], found["imports"]) == (1.0, 2.0)
    assert found["model"] == 0.7  # then the group, which takes 0.3 s, is waited for


def test_a_node_of_the_main_thread_waits_for_its_turn() -> None:
    both = start(node("a", 0.1, 1.1, main=True), node("b", 1.1, 2.1, main=True), first_step_s=2.1)
    assert gains(both)["a"] == 1.0


def test_spans_of_a_program_without_a_graph_follow_each_other() -> None:
    plain = [
        replace(node(name, b, e, main=True), after=None)
        for name, b, e in (
            (
                "x",
                0.1,
                1,
            ),
            ("y", 1.5, 2),
        )
    ]
    found = start(*plain, first_step_s=2)
    assert gains(found) == {PROCESS: 0.1, "x": 0.9, "y": 0.5}


@st.composite
def starts(draw: st.DrawFn) -> StartedRank:
    """A start whose nodes begin some lag after all that they wait for."""
    nodes = [node(PROCESS, 0, 0.1, main=True)]
    for number in range(draw(st.integers(1, 6))):
        waits = draw(st.sets(st.sampled_from(range(len(nodes))), max_size=3)) | {0}
        begin_ns = max(nodes[i].end_ns or 0 for i in waits) + draw(st.integers(0, 50))
        end_ns = begin_ns + draw(st.integers(0, 5 * S))
        after = tuple(nodes[i].name for i in waits)
        own = StartedNode(
            name=f"n{number}",
            span="init",
            begin_ns=begin_ns,
            end_ns=end_ns,
            after=after,
            is_on_main=draw(st.booleans()),
        )
        nodes.append(own)
    nodes.sort(key=lambda each: each.begin_ns)
    last_ns = max(each.end_ns or 0 for each in nodes)
    first = last_ns + draw(st.integers(0, S))
    return StartedRank(job="j", attempt=1, generation=0, rank=0, begin_ns=0, first_step_ns=first, nodes=tuple(nodes))


@pytest.mark.slow
@given(starts())
def test_a_gain_is_at_most_the_nodes_own_time_and_is_found_on_the_path_alone(found: StartedRank) -> None:
    path = start_path(found)
    assert path is not None
    for place, each in enumerate(path.nodes):
        assert each.node.end_ns is not None
        assert 0 <= each.gain_ns <= each.node.end_ns - each.node.begin_ns
        assert not each.gain_ns or place in path.critical
    assert 0 <= path.lag_ns <= path.total_ns


def records(rank: int, *more: dict[str, object]) -> tuple[str, bytes]:
    common = {"v": 1, "job": "j", "att": 1, "gen": 0, "src": f"r{rank}", "rank": rank, "host": "h", "boot": "b"}
    lines = [
        encode_line({**common, "pid": 7, "seq": seq, "wall_ns": 10 * S + seq * S, "mono_ns": seq * S, **fields})
        for seq, fields in enumerate(more)
    ]
    return f"1/r{rank}-h-7-b.jsonl", b"".join(lines)


GRAPH = (
    {"ev": "proc_start", "parent_wall_ns": 10 * S - S // 2},
    {"ev": "span_begin", "id": 1, "name": "model_build", "blocking": True},
    {"ev": "startup_node", "id": 1, "node": "model", "after": ["x"], "main": False},
    {"ev": "span_begin", "id": 2, "name": "restore", "blocking": True, "parent": 1},
    {"ev": "span_end", "id": 2, "name": "restore", "blocking": True},
    {"ev": "span_end", "id": 1, "name": "model_build", "blocking": True},
    {"ev": "span_begin", "id": 3, "name": "all", "blocking": True},
    {"ev": "step_begin", "step": 1, "b_mono": 7 * S},
    {"ev": "span_begin", "id": 4, "name": "eval", "blocking": True},
)


def test_a_start_is_read_from_the_log_up_to_the_first_step() -> None:
    (found,) = read_starts([records(0, *GRAPH), ("0/sup-h-1-b.jsonl", b"")])
    assert (found.begin_ns, found.first_step_ns) == (-S // 2, 7 * S)
    assert [(n.name, n.span, n.after, n.is_on_main) for n in found.nodes] == [
        (PROCESS, "init", (), True),
        ("model", "model_build", ("x",), False),
    ]


def test_a_start_that_was_cut_short_shows_what_ran_last() -> None:
    (found,) = read_starts([records(0, *GRAPH[:3])])
    assert found.nodes[-1].end_ns is None
    assert start_path(found) is None
    assert "no first step yet" in startup_text([found])


def test_the_report_is_on_the_slowest_rank_of_the_newest_start() -> None:
    old = replace(OVERLAPPED, attempt=1)
    fast, slow = replace(OVERLAPPED, attempt=2, rank=0), replace(OVERLAPPED, attempt=2, rank=1, first_step_ns=9 * S)
    assert slowest([old, fast, slow]) == slow
    text = startup_text([old, fast, slow])
    assert "attempt 2: 9.000s to the first step of rank 1, the slowest of 2 ranks" in text
    assert "attempt 1: 4.300s to the first step of rank 0" in text


def test_the_text_names_the_path_and_the_gains() -> None:
    text = startup_text([OVERLAPPED])
    assert f"* critical path: {PROCESS} -> imports -> model -> restore; 0.200s of it in none of them" in text
    assert "one after the other: 5.000s; side by side saves 0.700s" in text
    assert "what would gain most, if it took no time: imports 2.000s, restore 1.000s, model 0.700s" in text


def test_the_json_is_exact() -> None:
    (data,) = startup_json([OVERLAPPED])["data"]["starts"]
    assert data["total_ns"] == round(4.3 * S)
    assert data["critical_path"] == [PROCESS, "imports", "model", "restore"]
    (restore,) = [each for each in data["nodes"] if each["node"] == "restore"]
    assert restore["waited_for"] == ["plan", "imports", "group", "model"]
    assert (restore["ns"], restore["gain_ns"], restore["critical"]) == (S, S, True)


@pytest.mark.parametrize("name", ["j", "<&\x1b>"])
def test_the_picture_has_a_bar_for_each_node(name: str) -> None:
    picture = startup_svg(replace(OVERLAPPED, job=name))
    assert picture.count("<g><title>") == len(OVERLAPPED.nodes)
    assert "\x1b" not in picture
    ET.fromstring(picture)
