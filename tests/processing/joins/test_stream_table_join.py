from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamlog import App, ProcessingError
from streamlog.errors import SerdeError, TopologyError
from streamlog.processing.joins.stream_table_join import TableStep
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.tables.stores.memory_store import MemoryStore


def test_only_stream_records_trigger_and_see_the_current_row() -> None:
    app = App("joins")
    clicks = app.topic("clicks", key=str, value=str)
    users = app.topic("users", key=str, value=str)
    inner = app.topic("inner", key=str, value=str)
    left = app.topic("left", key=str, value=str)
    table = app.table(users, name="users")
    stream = app.stream(clicks)
    stream.join(table, lambda c, u: f"{c}-{u}", name="inner").to(inner)
    stream.left_join(table, lambda c, u: f"{c}-{u}", name="left").to(left)
    with app.test() as t:
        t.input(clicks).send("1", key="a")
        t.input(users).send("Ann", key="a")
        t.input(clicks).send("2", key="a")
        t.restart()
        t.input(clicks).send("3", key="a")
        t.input(users).send("Eve", key="a")
        t.input(clicks).send("4", key="a")
        t.input(users).send(None, key="a")
        t.input(clicks).send("5", key="a")
        t.input(clicks).send(None, key="a")
        t.input(clicks).send("6")
        assert t.output(inner).values == ["2-Ann", "3-Ann", "4-Eve"]
        assert t.output(left).values == [
            "1-None", "2-Ann", "3-Ann", "4-Eve", "5-None", "6-None"
        ]  # fmt: skip
        assert t.drops == {
            ("inner", "null value"): 1, ("left", "null value"): 1, ("inner", "null key"): 1
        }  # fmt: skip


def test_a_changed_key_is_repartitioned_like_the_table() -> None:
    app = App("rekeyed")
    clicks = app.topic("clicks", key=str, value=str, partitions=3)
    users = app.topic("users", key=int, value=str, partitions=2)
    out = app.topic("out", key=int, value=str)
    table = app.table(users)
    app.stream(clicks).rekey(lambda _, c: int(c), name="by-id").join(
        table, lambda c, u: f"{c}-{u}"
    ).to(out)
    with app.test() as t:
        for number in range(8):
            t.input(users).send(f"u{number}", key=number)
        for number in range(8):
            t.input(clicks).send(str(number), key="x")
        assert sorted(t.output(out).values) == [f"{n}-u{n}" for n in range(8)]


def test_a_stream_can_be_joined_with_a_view_of_an_aggregation() -> None:
    app = App("counts")
    words = app.topic("words", key=str, value=str)
    click_records = app.topic("asked", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    counts = app.stream(words).group_by_key().count(name="counts")
    often = counts.filter(lambda _, n: n > 1).map_values(lambda n: n * 10)
    app.stream(click_records).left_join(often, lambda a, n: f"{a}{n}", name="answers").to(out)
    with app.test() as t:
        for question in ("p", "q", "r"):
            t.input(click_records).send(question, key="a")
            t.input(words).send("w", key="a")
        t.input(click_records).send("s", key="a")
        assert t.output(out).values == ["pNone", "qNone", "r20", "s30"]


def test_a_join_of_keys_of_different_types_is_refused() -> None:
    app = App("apart")
    words = app.topic("words", key=str, value=str)
    click_records = app.topic("asked", key=str, value=str)
    counts = app.stream(words).group_by(lambda _, w: w, name="by-word").count(name="counts")
    with pytest.raises(TopologyError, match="annotate a function that makes keys"):
        app.stream(click_records).join(counts, lambda a, n: f"{a}{n}", name="answers")


def test_a_failing_joiner_names_its_record() -> None:
    app = App("fails")
    words = app.topic("words", key=str, value=str)
    table = app.table(app.topic("users", key=str, value=str))

    def shout(word: str, name: str | None) -> str:
        assert name is not None, "who is it?"
        return word + name

    app.stream(words).left_join(table, shout, name="shout")
    with app.test() as t, pytest.raises(ProcessingError, match="'shout' failed at offset 0 of w"):
        t.input(words).send("hey", key="a")


class Picky:
    """A user's serde that fails to read one value."""

    def dumps(self, obj: str) -> bytes:
        return obj.encode()

    def loads(self, data: bytes) -> str:
        if data == b"bad":
            raise SerdeError("no good")
        return data.decode()


def joined(rows: dict[str, str], keys: list[str | None]) -> list[bytes | None]:
    """Return the output of one batch of records with these keys."""
    app = App("batch")
    users = app.table(app.topic("users", key=str, value=str))
    clicks = app.stream(app.topic("clicks", key=str, value=str))
    out = app.topic("out", key=str, value=str)
    clicks.left_join(users, lambda click, user: f"{click}-{user}").to(out)
    task = started(app)
    user_records = [LogRecord(at, at, *map(str.encode, row)) for at, row in enumerate(rows.items())]
    ends = {("users", 0): len(user_records), ("clicks", 0): len(keys)}
    task.process({("users", 0): user_records}, 0, ends=ends)
    task.committed(task.checkpoint(), next_offset=1)
    click_records = [
        LogRecord(at, 100 + at, None if key is None else key.encode(), b"%d" % at)
        for at, key in enumerate(keys)
    ]
    return [sink.value for sink in task.process({("clicks", 0): click_records}, 0, ends=ends).sinks]


def started(app: App) -> Task:
    (sub,) = app.topology().subtopologies
    counts = app.topology().partition_counts({"users": 1, "clicks": 1, "out": 1})
    task = Task(sub, TaskId(0, 0), partitions=counts, store=MemoryStore())
    task.start_at(dict.fromkeys(task.inputs, 0))
    return task


def test_each_record_of_a_batch_finds_its_own_row() -> None:
    rows = {"a": "Ann", "b": "Bob"}
    keys = ["a", "x", None, "b", "a", "", "x"]
    assert joined(rows, keys) == [
        b"0-Ann", b"1-None", b"2-None", b"3-Bob", b"4-Ann", b"5-None", b"6-None"
    ]  # fmt: skip


def test_an_unreadable_row_names_the_record_that_looked_it_up() -> None:
    app = App("picky")
    users = app.table(app.topic("users", key=str, value=str))
    clicks = app.stream(app.topic("clicks", key=str, value=str))
    clicks.join(users, lambda click, _: click).to(app.topic("out", key=str, value=str))
    task = started(app)
    users_step = task._steps["users"]
    assert isinstance(users_step, TableStep)
    user_records = [
        LogRecord(at, at, key, value)
        for at, (key, value) in enumerate([(b"a", b"x"), (b"b", b"bad")])
    ]
    ends = {("users", 0): 2, ("clicks", 0): 2}
    task.process({("users", 0): user_records}, 0, ends=ends)
    users_step._value = Picky()
    with pytest.raises(ProcessingError, match="offset 1 of clicks-0: no good"):
        task.process(
            {("clicks", 0): [LogRecord(0, 9, b"a", b"1"), LogRecord(1, 9, b"b", b"2")]},
            0,
            ends=ends,
        )


def test_the_rows_of_a_batch_are_read_from_disk_in_one_call() -> None:
    app = App("joins")
    names = app.topic("names", key=str, value=str)
    visits = app.topic("visits", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    joined = app.stream(visits).join(app.table(names, name="people"), lambda at, name: at + name)
    joined.to(out)
    reads: list[int] = []

    def get_all(store: MemoryStore, keys: Sequence[bytes]) -> list[bytes | None]:
        reads.append(len(keys))
        return [store._values.get(key) for key in keys]

    with app.test() as t:
        for key in ("a", "b"):
            t.input(names).send(key.upper(), key=key, at=1)
        t.restart()
        for key in ("a", "b", "none", "a"):
            t.topic("visits").append(b"1", key=key.encode(), timestamp_ms=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "get_all", get_all)
            patch.setattr(MemoryStore, "get", lambda _store, key: pytest.fail(f"{key!r} alone"))
            t.settle()
        assert [record.value for record in t.output(out).records] == ["1A", "1B", "1A"]
    assert reads == [3]
