"""The pages of an app as functions of what they show: laws over random figures."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, agg, tumbling
from streamlog.console.app_pages.app_sight import AppSight, node_sights
from streamlog.console.app_pages.profile_pages import flames
from streamlog.console.app_pages.topology_pages import PAGE_WIDTH, Graph, topology
from streamlog.console.worker_console.record_samples import shown_value
from streamlog.console.worker_console.thread_samples import ThreadSamples
from streamlog.processing.node_figures import NodeFigures
from streamlog.worker.health.worker_health import TaskFigures, WorkerState
from tests.console.consoles import Page

COUNTS = st.dictionaries(
    st.tuples(st.sampled_from(["0_0", "0_1", "1_0"]), st.sampled_from(["map", "count"])),
    st.integers(0, 1_000),
    max_size=6,
)
Counts = dict[tuple[str, str], int]


def state(counts: Counts) -> WorkerState:
    tasks = sorted({task for task, _ in counts})
    return WorkerState(
        tasks=tuple(
            TaskFigures(
                task=task,
                nodes=tuple(
                    NodeFigures(node, records_in=count)
                    for (of, node), count in sorted(counts.items())
                    if of == task
                ),
            )
            for task in tasks
        )
    )


@given(COUNTS, COUNTS)
def test_rates_are_what_tasks_have_counted_since_and_never_negative(
    before: Counts, gains: Counts
) -> None:
    after = {at: before.get(at, 0) + gain for at, gain in gains.items()}
    found = node_sights(state(before), state(after), 2.0)
    for node in {node for _, node in after}:
        gained = sum(gain for (_, of), gain in gains.items() if of == node)
        assert found[node].in_rate == gained / 2
        assert found[node].records_in == sum(n for (_, of), n in after.items() if of == node)
    # A task that has come back counts from 0: all that it has is new.
    again = node_sights(state(after), state(gains), 1.0)
    assert all((each.in_rate or 0) >= 0 for each in again.values())
    assert all(each.in_rate is None for each in node_sights(None, state(after), 0).values())


@dataclass
class Count:
    n: int


def build() -> App:
    app = App("shop")
    orders = app.topic("orders", key=str, value=int)
    (
        app.stream(orders)
        .map(lambda k, v: (k, v), name="swap")
        .group_by(lambda _, v: str(v), name="by-value")
        .windowed(tumbling("1h"))
        .agg(Count, n=agg.count(), name="per-hour")
    )
    return app


def test_the_graph_draws_every_box_once_and_has_no_style_of_its_own() -> None:
    graph = Graph.of(build().program().topology)
    sight = AppSight(at_ms=1, nodes=node_sights(None, state({("0_0", "swap"): 5}), 0))
    page = Page(topology(graph, sight, {}).content.text)
    boxes = [found for tag, found in page.tags if tag == "a" and "box" in found.get("class", "")]
    assert len(boxes) == len(graph.picture.boxes)
    assert "swap" in page.text
    assert all("style" not in found for _, found in page.tags)


def test_the_graph_fits_beside_the_menu() -> None:
    graph = Graph.of(build().program().topology)
    assert graph.placed.width <= PAGE_WIDTH
    assert graph.placed.frames.keys() == graph.picture.groups.keys()


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists))
def test_every_value_of_an_app_can_be_shown(value: object) -> None:
    assert len(shown_value(value)) <= 8 * 1024 * 3
    assert "RuntimeError" in shown_value([value, Odd()])


STACKS = st.dictionaries(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(tuple),
    st.integers(1, 9),
    max_size=12,
)


@given(STACKS)
def test_a_flame_is_as_wide_as_the_stacks_that_begin_with_it(
    stacks: dict[tuple[str, ...], int],
) -> None:
    found = [*flames(stacks)]
    # The definition: one box for each beginning of a stack, of all samples that begin so.
    beginnings = {stack[:n] for stack in stacks for n in range(1, len(stack) + 1)}
    wanted = sorted(
        (len(at) - 1, at[-1], sum(n for s, n in stacks.items() if s[: len(at)] == at))
        for at in beginnings
    )
    assert sorted((each.depth, each.name, each.count) for each in found) == wanted
    # Boxes of one row do not overlap.
    for depth in {each.depth for each in found}:
        row = sorted((each.begin, each.begin + each.count) for each in found if each.depth == depth)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(row))


def test_a_profile_finds_the_function_at_work() -> None:
    def spin(ended: threading.Event) -> None:
        while not ended.is_set():
            sum(range(1_000))

    ended = threading.Event()
    thread = threading.Thread(target=spin, args=(ended,), name="spinner")
    thread.start()
    try:
        found = asyncio.run(ThreadSamples().take(0.2))
    finally:
        ended.set()
        thread.join()
    mine = [stack for stack in found if stack[0] == "spinner"]
    assert any("spin (" in stack[-1] for stack in mine)
