from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, ProcessingError, Record, Stream
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.murmur2 import partitions_of_keys

Build = Callable[[Stream[str, str]], Stream[Any, Any]]


def outputs_of(build: Build, records: list[tuple[str | None, str | None]]) -> list[tuple[Any, Any]]:
    """Return the output if all records arrive at once."""
    app = App("stateless")
    words = app.topic("words", key=str, value=str)
    out = app.topic("out", key=str, value=str)
    build(app.stream(words)).to(out)
    (sub,) = app.topology().subtopologies
    task = Task(sub, TaskId(0, 0), partitions={"words": 1, "out": 1})
    raw = [
        RawRecord(at, at, encoded(key), encoded(value), (("h", b"%d" % at),))
        for at, (key, value) in enumerate(records)
    ]
    outbox = task.process({("words", 0): raw}, 0, ends={("words", 0): len(raw)})
    assert outbox.offsets == {("words", 0): len(raw)}
    for sink in outbox.sinks:
        # Timestamp and headers stay those of the input record.
        assert sink.headers == (("h", b"%d" % sink.timestamp_ms),)
    return [(decoded(s.key), decoded(s.value)) for s in outbox.sinks]


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda s: s, [("a", "xy"), ("b", "z"), ("a", "")]),
        (lambda s: s.map(lambda k, v: (v, k)), [("xy", "a"), ("z", "b"), ("", "a")]),
        (lambda s: s.map_values(str.upper), [("a", "XY"), ("b", "Z"), ("a", "")]),
        (lambda s: s.flat_map_values(list), [("a", "x"), ("a", "y"), ("b", "z")]),
        (lambda s: s.filter(lambda _, v: len(v) < 2), [("b", "z"), ("a", "")]),
        (lambda s: s.filter(lambda _, v: v > "~"), []),
        (lambda s: s.rekey(lambda k, v: k + v), [("axy", "xy"), ("bz", "z"), ("a", "")]),
        (
            lambda s: s.flat_map_values(list).map_values(str.upper).filter(lambda _, v: v > "X"),
            [("a", "Y"), ("b", "Z")],
        ),
        (
            lambda s: s.merge(s.map_values(str.upper)),
            [("a", "XY"), ("a", "xy"), ("b", "Z"), ("b", "z"), ("a", ""), ("a", "")],
        ),
        (
            lambda s: s.filter(lambda _, v: bool(v)).flat_map_values(lambda v: [v] * (v == "z")),
            [("b", "z")],
        ),
    ],
)
def test_a_batch_gives_the_results_of_single_records(
    build: Build, wanted: list[tuple[str, str]]
) -> None:
    records: list[tuple[str | None, str | None]] = [("a", "xy"), ("b", "z"), ("a", "")]
    assert outputs_of(build, records) == wanted


def test_flat_mapped_rows_keep_their_own_record() -> None:
    # Two records in, two out, but both of the first one.
    records: list[tuple[str | None, str | None]] = [("a", "xy"), ("b", "")]
    found = outputs_of(lambda s: s.flat_map_values(list).filter(lambda _k, _v: True), records)
    assert found == [("a", "x"), ("a", "y")]


def test_null_keys_and_values_pass_through() -> None:
    assert outputs_of(lambda s: s, [(None, "v"), ("k", None)]) == [(None, "v"), ("k", None)]


def test_peek_sees_records_with_coordinates() -> None:
    seen: list[Record[str, str]] = []
    outputs_of(lambda s: s.peek(seen.append), [("a", "x"), ("b", "y")])
    assert [(r.key, r.value, r.topic, r.partition, r.offset) for r in seen] == [
        ("a", "x", "words", 0, 0), ("b", "y", "words", 0, 1)
    ]  # fmt: skip
    assert seen[1].headers == (("h", b"1"),)


def stop(_: str) -> str:
    raise StopIteration


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda s: s.map(lambda k, v: (k, v[1]), name="n"), "IndexError"),
        (lambda s: s.map(lambda k, v: k if v == "y" else (k, v), name="n"), "must return (key"),
        (lambda s: s.map_values(lambda v: v[1], name="n"), "IndexError"),
        (lambda s: s.map_values(lambda v: stop(v) if v == "y" else v, name="n"), "StopIteration"),
        (lambda s: s.flat_map_values(lambda v: v[1], name="n"), "IndexError"),
        (lambda s: s.filter(lambda _, v: v[1] == "y", name="n"), "IndexError"),
        (lambda s: s.rekey(lambda _, v: v[1], name="n"), "IndexError"),
    ],
)
def test_a_failing_function_names_node_and_record(build: Build, text: str) -> None:
    with pytest.raises(ProcessingError) as error:
        outputs_of(build, [("a", "xx"), ("b", "y"), ("c", "zz")])
    assert "'n' failed at offset 1 of words-0" in str(error.value)
    assert text in str(error.value)
    assert (error.value.node, error.value.offset) == ("n", 1)


def test_a_value_of_the_wrong_type_fails_at_the_sink() -> None:
    def odd(value: str) -> Any:
        return 5 if value == "y" else value

    with pytest.raises(ProcessingError, match="failed at offset 1 of words-0: str expected"):
        outputs_of(lambda s: s.map_values(odd), [("a", "x"), ("b", "y")])


def test_keyless_records_are_partitioned_by_time_and_value() -> None:
    batch = SinkBatch("t", None, [1, 1, 2, 2], [b"k", None, None, None], [b"v", b"v", b"v", None])
    routes = [record.route for record in batch.records()]
    assert routes[0] == b"k"
    assert len({*routes}) == 4
    assert batch.partitions(1000) == partitions_of_keys(routes, 1000)
    keyed = batch._replace(keys=[b"a", b"b", b"", b"d"])
    assert keyed.partitions(1000) == partitions_of_keys([b"a", b"b", b"", b"d"], 1000)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 5)), max_size=30),
    st.booleans(),
)
def test_a_filtered_table_emits_only_visible_changes(
    changes: list[tuple[str, int | None]],
    is_mapped: bool,
) -> None:
    def wanted(value: int | None) -> int | None:
        return value if value is not None and value % 2 == 0 else None

    app = App("filtered")
    numbers = app.topic("numbers", key=str, value=int, compact=True)
    out = app.topic("out", key=str, value=int)
    table = app.table(numbers)
    table = table.map_values(lambda v: v) if is_mapped else table
    table.filter(lambda _, v: v % 2 == 0).changes().to(out)
    rows: dict[str, int | None] = {}
    expected = []
    for key, value in changes:
        before, rows[key] = wanted(rows.get(key)), value
        if before is not None or wanted(value) is not None:
            expected.append((key, wanted(value)))
    with app.test() as t:
        for key, value in changes:
            t.input(numbers).send(cast("int", value), key=key)
        assert [(r.key, r.value) for r in t.output(out).records] == expected
