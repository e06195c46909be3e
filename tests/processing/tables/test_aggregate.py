from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamlog import App
from streamlog.durations import when_ms
from streamlog.nodes.stream_nodes import Aggregate, Aggregation
from streamlog.processing.outbox import Collector
from streamlog.processing.tables.aggregate import ROW_BYTES, ROWS_BYTES_MAX, AggregateStep
from streamlog.serdes import serde_for
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import StoreSpec

steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=30)


@given(steps)
def test_each_record_emits_the_running_result_across_restarts(
    events: list[tuple[str, int, bool]],
) -> None:
    app = App("running")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    table = app.stream(words).group_by_key().reduce(max, name="largest")
    table.changes().to(out)
    largest: dict[str, int] = {}
    with app.test() as t:
        for at, (key, value, restart) in enumerate(events):
            if restart:
                t.restart()
            t.input(words).send(value, key=key, at=at)
            largest[key] = max(largest.get(key, 0), value)
            record = t.output(out).pop()
            assert (record.key, record.value) == (key, largest[key])
        assert t.table(table) == largest


def test_an_emitted_result_has_the_largest_timestamp_and_never_changes() -> None:
    app = App("lists")
    words = app.topic("words", key=str, value=int)
    out = app.topic("out", key=str, value=list[int])

    def add(seen: list[int], value: int) -> list[int]:
        seen.append(value)
        return seen

    table = app.stream(words).group_by_key().aggregate(list, add, name="seen")
    table.changes().map_values(list).to(out)
    with app.test() as t:
        for value, at in ((1, 10), (2, 5), (3, 20)):
            t.input(words).send(value, key="a", at=at)
        found = [(r.value, when_ms(r.timestamp)) for r in t.output(out).records]
        assert found == [([1], 10), ([1, 2], 10), ([1, 2, 3], 20)]


def test_the_row_cache_is_bounded_and_evicted_rows_are_read_back() -> None:
    counting = Aggregation(int, lambda n, _: n + 1, lambda n: n, serde_for(int))
    node = Aggregate(name="n", store=StoreSpec("n"), key=serde_for(str), aggregation=counting)
    step: Any = AggregateStep(node, MemoryStore(), Collector())
    for number in range(ROWS_BYTES_MAX // ROW_BYTES):
        step._fold(str(number).encode(), 1, 0)
    step.flush()
    assert step._rows == {}
    assert step.lookup(b"7") == 1
    assert step._fold(b"7", 1, 0) == (2, 0)
    assert step.lookup(b"none") is None
