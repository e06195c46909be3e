from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Processor, Record, Stream, kv_store
from streamlog.errors import UsageError
from streamlog.processing.task import TaskId
from streamlog.testing.driver_tables import share_tasks

inits: list[int] = []


class Totals(Processor[str, int, str, int]):
    total = kv_store(str, int)

    def init(self) -> None:
        inits.append(1)

    def process(self, record: Record[str, int]) -> None:
        total = (self.total.get(record.key) or 0) + record.value
        self.total.put(record.key, total)
        self.ctx.forward(record.key, total)


def test_moving_tasks_keep_their_state_and_the_others_continue() -> None:
    app = App("moving")
    source, out = (app.topic(name, key=str, value=int, partitions=4) for name in ("in", "out"))
    app.stream(source).process(Totals, name="totals").to(out)
    with app.test() as t:
        for key in "abcdefgh":
            t.input(source).send(1, key=key)
        inits.clear()
        t.rebalance(2)
        assert len(inits) == 2
        t.rebalance(2)
        t.rebalance(4)
        assert len(inits) == 4
        for key in "abcdefgh":
            t.input(source).send(10, key=key)
        assert t.output(out).values[8:] == [11] * 8
        inits.clear()
        t.rebalance(1)
        assert len(inits) == 3
        t.input(source).send(100, key="a")
        assert t.output(out).values[-1] == 111


def test_agents_resume_after_a_rebalance_and_every_worker_has_its_timers() -> None:
    app = App("shared")
    source = app.topic("in", key=str, value=int)
    handled: list[tuple[str, int]] = []
    ticks: list[str] = []
    served: list[int] = []

    @app.agent(source)
    async def handle(stream: Stream[str, int]) -> None:
        async for key, value in stream.items():
            handled.append((key, value))

    @app.timer("1m", on="every_worker")
    async def everywhere() -> None:
        ticks.append("every")

    @app.timer("1m")
    async def once() -> None:
        ticks.append("once")

    @app.task
    async def serve() -> None:
        served.append(1)

    with app.test() as t:
        t.input(source).send(1, key="a")
        t.rebalance(3)
        t.input(source).send(2, key="a")
        t.advance("1m")
    assert handled == [("a", 1), ("a", 2)]
    assert sorted(ticks) == ["every", "every", "every", "once"]
    assert len(served) == 4


def test_a_rebalance_to_zero_workers_is_refused() -> None:
    app = App("nobody")
    app.stream(app.topic("in", key=str, value=int))
    with app.test() as t, pytest.raises(UsageError, match="1 worker or more"):
        t.rebalance(0)


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12),
    st.lists(st.integers(1, 6), max_size=5),
)
def test_shares_are_balanced_and_tasks_move_only_if_necessary(
    task_ids: set[tuple[int, int]], rounds: list[int]
) -> None:
    tasks = [TaskId(*task_id) for task_id in task_ids]
    owners: dict[TaskId, int] = {}
    for workers in rounds:
        found = share_tasks(tasks, owners, workers)
        loads = [[*found.values()].count(worker) for worker in range(workers)]
        assert found.keys() == {*tasks}
        assert max(loads) - min(loads) <= 1 or max(loads) <= -(-len(tasks) // workers)
        assert share_tasks(tasks, found, workers) == found
        owners = found
