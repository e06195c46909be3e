"""Abandoned state: a task of the new program removes it, once."""

from __future__ import annotations

import pytest

from streamlog import App
from streamlog.errors import CorruptData, TopologyError
from streamlog.processing.task import Task, TaskId
from streamlog.processing.task_progress import Era
from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import TaskProgress
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import KeyValueStore


def task(store: KeyValueStore, era: Era | None = None, *, topics: int = 2) -> Task:
    app = App("app")
    names = ["a", "b"][:topics]
    streams = [app.stream(app.topic(name, key=str, value=str)) for name in names]
    merged = streams[0].merge(*streams[1:]) if topics > 1 else streams[0]
    merged.group_by_key().count(name="kept")
    merged.group_by_key().count(name="given-up")
    sub = app.topology().subtopologies[0]
    return Task(sub, TaskId(0, 0), partitions=dict.fromkeys(names, 1), store=store, era=era)


def feed(each: Task, offset: int) -> Task:
    tp = each.inputs[0]
    records = [LogRecord(offset, 1_000, b"k", b"v")]
    ends = {other: offset + 1 if other == tp else 0 for other in each.inputs}
    each.process({tp: records}, 0, ends=ends)
    each.committed(each.checkpoint(), next_offset=offset + 1)
    return each


def rows(each: Task) -> tuple[dict[str, int], dict[str, int]]:
    return dict(each.table("kept")), dict(each.table("given-up"))


def test_state_is_kept_within_an_era() -> None:
    store = MemoryStore()
    feed(task(store), 0)
    assert rows(feed(task(store), 1)) == ({"k": 2}, {"k": 2})


def test_a_new_era_drops_abandoned_state_once_and_keeps_the_rest() -> None:
    store = MemoryStore()
    feed(task(store), 0)
    era = Era(1, {"given-up": 1})
    assert rows(task(store, era)) == ({"k": 1}, {})
    # Not committed: a crash here changes nothing, and the next task removes it again.
    assert rows(feed(task(store, era), 1)) == ({"k": 2}, {"k": 1})
    assert rows(feed(task(store, era), 2)) == ({"k": 3}, {"k": 2})
    later = Era(2, {"given-up": 1, "another": 2})
    assert rows(feed(task(store, later), 3)) == ({"k": 4}, {"k": 3})


def test_a_replaced_program_refuses_its_successor_s_state() -> None:
    store = MemoryStore()
    feed(task(store, Era(1, {})), 0)
    with pytest.raises(TopologyError, match="a newer version of app 'app'"):
        task(store)


def test_dropping_an_input_needs_a_new_era() -> None:
    store = MemoryStore()
    both = task(store)
    tp = ("b", 0)
    both.process({tp: [LogRecord(0, 1_000, b"k", b"v")]}, 0, ends={("a", 0): 0, tp: 1})
    both.committed(both.checkpoint(), next_offset=1)
    with pytest.raises(TopologyError, match="it has read b"):
        task(store, topics=1)
    assert rows(feed(task(store, Era(1, {}), topics=1), 0)) == ({"k": 2}, {"k": 2})


def test_an_unreadable_era_is_corrupt() -> None:
    app = App("app")
    app.table(app.topic("a", key=str, value=str))
    sub = app.topology().subtopologies[0]
    progress = TaskProgress(sections={"era": "first"})
    with pytest.raises(CorruptData, match="era 'first'"):
        Task(sub, TaskId(0, 0), partitions={"a": 1}, store=MemoryStore(), progress=progress)
