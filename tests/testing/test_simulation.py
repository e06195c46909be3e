from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from itertools import count

import pytest

from streamlog import (
    App,
    Emit,
    ProcessingError,
    Processor,
    Record,
    Stream,
    Topic,
    kv_store,
    tumbling,
)
from streamlog.errors import RunsDiffer, UsageError
from streamlog.records.partitioners import Partitioner, partition_by


class Running(Processor[str, int, str, int]):
    total = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        total = (self.total.get(record.key) or 0) * 3 + record.value
        self.total.put(record.key, total % 1000)
        self.ctx.forward(record.key, total % 1000)


def simulate_records(app: App, source: Topic[str, int], **settings: int) -> str:
    """Return the report of a simulation with some late and disordered records."""
    with app.simulate(**settings) as s:
        for number in range(60):
            at = 1_000_000 + number * 10 - (number % 7) * 9
            s.input(source).send(number, key="abcdef"[number % 6], at=at)
    return str(s.report)


def test_correct_apps_give_equal_rows_under_any_faults() -> None:
    app = App("calm")
    source = app.topic("in", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    (
        app.stream(source)
        .process(Running, name="running")
        .group_by(lambda _, total: "odd" if total % 2 else "even", name="parity")
        .windowed(tumbling("50ms", grace="20ms"))
        .emit(Emit.UPDATE)
        .reduce(lambda a, b: (a * 31 + b) % 10_007, name="folded")
        .changes()
        .map(lambda windowed, value: (windowed.key, value), name="plain")
        .to(out)
    )
    report = simulate_records(app, source, seed=5, runs=8)
    assert report.startswith("8 runs over 60 records wrote the same rows (60 to out), through ")
    assert "kills" in report
    assert report.endswith("seeds 5 to 12")


def keys_with_partitions(records: Iterable[Record[str, int]]) -> list[tuple[str, int]]:
    return [(record.key, record.partition) for record in records]


def by_length(key: bytes, count: int) -> int:
    return len(key) % count


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32", "fnv1a", by_length])
def test_records_lie_where_their_topics_partitioner_puts_them(
    partitioner: Partitioner,
) -> None:
    app = App("placed")
    source = app.topic("in", key=str, value=int, partitioner=partitioner)
    out = app.topic("out", key=str, value=int, partitioner=partitioner)
    only_agents = app.topic("work", key=str, value=int, partitioner=partitioner)
    app.stream(source).to(out)

    @app.agent(only_agents, sink=out)
    async def work(stream: Stream[str, int]) -> AsyncIterator[int]:
        async for value in stream:
            yield value

    keys = ["k" * (number % 5) + str(number) for number in range(20)]
    wanted = [(key, partition_by(partitioner, key.encode(), 4)) for key in keys]
    with app.test(partitions=4) as t:
        for topic in (source, only_agents):
            for key in keys:
                t.input(topic).send(1, key=key)
        assert sorted(keys_with_partitions(t.output(out).records)) == sorted(wanted * 2)
    with app.simulate(partitions=4, runs=3) as s:
        for key in keys:
            s.input(source).send(1, key=key)
    assert sorted(keys_with_partitions(s.output(out).records)) == sorted(wanted)


def test_the_output_can_be_read_after_the_block() -> None:
    app = App("looked-at")
    source, out = (app.topic(name, key=str, value=int) for name in ("in", "out"))
    app.stream(source).map_values(lambda v: v + 1).to(out)
    with app.simulate(runs=2) as s:
        s.input(source).send(4, key="k")
    assert s.output(out).pop().value == 5
    assert s.report.rows == {"out": 1}


def test_a_function_that_counts_its_calls_is_found_with_a_seed() -> None:
    app, calls = App("counting"), count()
    source, out = (app.topic(name, key=str, value=int) for name in ("in", "out"))
    app.stream(source).map_values(lambda _: next(calls)).to(out)
    with pytest.raises(RunsDiffer) as caught:
        simulate_records(app, source, seed=3)
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "the run of seed 3 wrote other rows to 'out': 60 records missing and 60 too many"
    )
    assert re.fullmatch(r"  missing:  partition \d: '[a-f]' = \d+ at 1970-01-01 .*", lines[1])
    assert "to repeat it: app.simulate(seed=3, runs=1)" in lines
    assert "the faults of this run:" in lines


def test_rows_emitted_on_commit_are_compared_by_their_last_value() -> None:
    app = App("commits")
    source, out = (app.topic(name, key=str, value=int) for name in ("in", "out"))
    windowed = app.stream(source).group_by_key().windowed(tumbling("1h"))
    table = windowed.emit(Emit.COMMIT).count(name="counts")
    table.changes().map(lambda w, n: (w.key, n), name="plain").to(out)
    assert "(6 to out)" in simulate_records(app, source, runs=5)


def test_a_failing_function_is_reported_with_the_seed() -> None:
    app, calls = App("failing"), count()
    source, out = (app.topic(name, key=str, value=int) for name in ("in", "out"))

    def first_sixty(value: int) -> int:
        if next(calls) >= 60:
            raise ValueError("too many")
        return value

    app.stream(source).map_values(first_sixty).to(out)
    with pytest.raises(ProcessingError) as caught:
        simulate_records(app, source, seed=9)
    assert "to repeat it: app.simulate(seed=9, runs=1)" in caught.value.__notes__[0]


def test_misuse_of_a_simulation_is_explained() -> None:
    app = App("used")
    source = app.topic("in", key=str, value=int)
    app.stream(source).to(app.topic("out", key=str, value=int))
    with app.simulate(runs=1) as s:
        send = s.input(source).send
        with pytest.raises(UsageError, match="at the end of its block"):
            _ = s.report
    with pytest.raises(UsageError, match="inside"):
        send(1, key="k")
    with pytest.raises(UsageError, match="1 run or more"):
        app.simulate(runs=0)
