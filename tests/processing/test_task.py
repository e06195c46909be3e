"""What a task restores from a checkpoint, and what it refuses."""

from __future__ import annotations

import pytest

from streamlog import App
from streamlog.errors import TopologyError
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import apply_records
from streamlog.tables.stores.memory_store import MemoryStore


def counting(topic: str) -> App:
    app = App("counts")
    source = app.topic(topic, key=str, value=str)
    app.stream(source).group_by_key().count(name="per-key")
    return app


def task_of(app: App, store: MemoryStore) -> Task:
    sub = app.topology().subtopologies[0]
    return Task(sub, TaskId(0, 0), partitions=dict.fromkeys(sub.inputs, 1), store=store)


def store_after_a_record(topic: str) -> MemoryStore:
    """Return the store after one record and a commit."""
    store = MemoryStore()
    task = task_of(counting(topic), store)
    task.process({(topic, 0): [LogRecord(0, 5, b"k", b"v")]}, 0, ends={(topic, 0): 1})
    apply_records(store, task.checkpoint(), next_offset=3)
    return store


def test_a_task_continues_at_the_offset_of_its_state() -> None:
    assert task_of(counting("words"), store_after_a_record("words")).positions == {("words", 0): 1}


def test_the_state_of_another_topology_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"has read words.*new id"):
        task_of(counting("letters"), store_after_a_record("words"))
