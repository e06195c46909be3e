"""Tables that the program writes, from agents, processors and elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Processor, Record, Stream, Table, on_error, punctuate, tumbling
from streamlog.errors import ProcessingError, SerdeError, TopologyError, UsageError

START = datetime(2025, 1, 1, tzinfo=UTC)
Words = Stream[str, int]


def counting(**options: object) -> tuple[App, object, Table[str, int], object]:
    app = App("counting")
    words = app.topic("words", key=str, value=int)
    changes = app.topic("changes", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)
    totals.changes().to(changes)

    @app.agent(words, **options)  # type: ignore[call-overload,untyped-decorator]
    async def tally(stream: Words) -> None:
        async for word, amount in stream.items():
            totals[word] += amount

    return app, words, totals, changes


@given(
    amounts=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(-5, 5)), max_size=30),
    turns=st.lists(st.sampled_from(["", "", "restart", "rebalance"]), min_size=30, max_size=30),
    concurrency=st.sampled_from([1, 3]),
)
def test_an_agents_additions_survive_restarts_and_moves(
    amounts: list[tuple[str, int]], turns: list[str], concurrency: int
) -> None:
    app, words, totals, _ = counting(concurrency=concurrency)
    wanted: Counter[str] = Counter()
    with app.test(partitions=3) as t:
        for (key, amount), turn in zip(amounts, turns, strict=False):
            t.input(words).send(amount, key=key)  # type: ignore[arg-type]
            wanted[key] += amount
            if turn == "restart":
                t.restart()
            elif turn == "rebalance":
                t.rebalance(2)
        assert t.table(totals) == {key: wanted[key] for key, _ in amounts}


def test_an_agent_reads_its_own_writes_and_they_flow_downstream() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    changes = app.topic("changes", key=str, value=int)
    stock = app.table("stock", key=str, value=int, default=lambda: 10)
    stock.changes().to(changes)
    seen: list[object] = []

    @app.agent(sales)
    async def sell(stream: Words) -> None:
        async for article, count in stream.items():
            seen.append((article in stock, stock.get(article), stock[article]))
            stock[article] -= count
            seen.append((article in stock, stock[article], [*stock.items()]))
            if not stock[article]:
                del stock[article]
                seen.append((article in stock, [*stock.items()]))

    with app.test() as t:
        t.input(sales).send(3, key="pen")
        t.input(sales).send(7, key="pen")
        assert seen == [
            (False, None, 10),
            (True, 7, [("pen", 7)]),
            (True, 7, 7),
            (True, 0, [("pen", 0)]),
            (False, []),
        ]
        assert t.table(stock) == {}
        assert t.output(changes).values == [7, None]


def test_rows_set_for_a_failed_record_are_discarded() -> None:
    app = App("shop", on_error=on_error.retry(1, backoff="1ms", then=on_error.skip()))
    sales = app.topic("sales", key=str, value=int)
    stock = app.table("stock", key=str, value=int, default=int)

    @app.agent(sales)
    async def sell(stream: Words) -> None:
        async for article, count in stream.items():
            stock[article] += 1
            if count < 0:
                raise ValueError(article)

    with app.test() as t:
        for count in (1, -1, 1):
            t.input(sales).send(count, key="pen")
        assert t.table(stock) == {"pen": 2}


def test_a_list_sets_the_rows_of_all_its_records() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    stock = app.table("stock", key=str, value=int, default=int)

    @app.agent(sales)
    async def sell(stream: Words) -> None:
        async for records in stream.take(4, within="1h"):
            for record in records:
                stock[record.key] += record.value

    with app.test(partitions=2) as t:
        for key in "abcab":
            t.input(sales).send(1, key=key)
        assert t.table(stock) == {"a": 2, "b": 1, "c": 1}
        t.restart()
        t.advance("1h")
        assert t.table(stock) == {"a": 2, "b": 2, "c": 1}


def test_a_processor_reads_and_writes_the_rows_of_its_partition() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int, partitions=2)
    totals = app.table("totals", key=str, value=int, default=int)
    out = app.topic("out", key=str, value=int)
    reports = app.topic("reports", key=str, value=int)

    class Add(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            totals[record.key] += record.value
            self.ctx.forward(record.key, totals[record.key])

        @punctuate(every="1h")
        def report(self, _: datetime) -> None:
            self.ctx.forward("sum", sum(value for _, value in totals.items()))

    app.stream(sales).process(Add, name="add").split(
        report=lambda key, _: key == "sum", rest=lambda *_: True
    )
    streams = app.stream(sales)
    streams.join(totals, lambda value, total: value * 1_000 + total).to(out)
    totals.changes().to(reports)
    with app.test() as t:
        for at, (key, value) in enumerate([("a", 1), ("b", 2), ("a", 3), ("a", 4)]):
            t.input(sales).send(value, key=key, at=START + timedelta(minutes=at))
        assert t.table(totals) == {"a": 8, "b": 2}
        # A later read of the table sees the processor's values so far.
        assert sorted(t.output(out).values) == [1_001, 2_002, 3_004, 4_008]
        assert sorted(t.output(reports).values) == [1, 2, 4, 8]
        t.restart()
        t.input(sales).send(5, key="b", at=START + timedelta(minutes=9))
        assert t.table(totals) == {"a": 8, "b": 7}


def test_a_processor_that_fails_on_a_record_sets_nothing() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    changes = app.topic("changes", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int, ttl="1h")
    totals.changes().to(changes)

    class Add(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            totals[record.key] += abs(record.value)
            if record.value < 0:
                raise ValueError(record.value)

    app.stream(sales).process(Add, name="add", on_error=on_error.skip())
    with app.test() as t:
        t.input(sales).send(1, key="a", at=START)
        t.input(sales).send(-100, key="a", at=START + timedelta(hours=5))
        t.input(sales).send(1, key="a", at=START)
        assert t.table(totals) == {"a": 2}
        assert t.output(changes).values == [1, 2]


def test_rows_expire_by_the_stream_time_of_the_table() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    changes = app.topic("changes", key=str, value=int)
    seen = app.table("seen", key=str, value=int, ttl="10m")
    seen.changes().to(changes)

    @app.agent(sales)
    async def note(stream: Words) -> None:
        async for key, value in stream.items():
            seen[key] = value

    with app.test() as t:
        for minute, key in [(0, "a"), (5, "b"), (6, "a"), (14, "c"), (15, "d"), (16, "e")]:
            t.input(sales).send(minute, key=key, at=START + timedelta(minutes=minute))
            if minute == 14:
                assert t.table(seen) == {"a": 6, "b": 5, "c": 14}
                assert asyncio.run(seen.fetch("b")) == 5
                t.restart()
        assert t.table(seen) == {"c": 14, "d": 15, "e": 16}
        gone = [record.key for record in t.output(changes).records if record.value is None]
        assert gone == ["b", "a"]
        asyncio.run(seen.put("f", 1))
        assert asyncio.run(seen.fetch("f")) == 1


def test_rows_are_put_fetched_and_scanned_from_schedules() -> None:
    app = App("nightly", timezone="Europe/Berlin")
    balances = app.table("balances", key=str, value=int, default=int)
    reports = app.topic("reports", key=str, value=str)

    @app.crontab("30 2 * * *", on="leader", misfire="once")
    async def close_day(due: datetime) -> None:
        async for account, cents in balances.scan(at=due):
            await reports.send(f"{due:%F} {cents}", key=account)

    @app.timer("15s", on="every_worker")
    async def ping() -> None:
        await balances.put("heartbeat", 1)

    with app.test(partitions=3) as t:
        asyncio.run(balances.put("alice", 250))
        assert asyncio.run(balances.fetch("alice")) == 250
        assert asyncio.run(balances.fetch("bob")) is None
        t.advance("2h")
        found = {record.key: record.value for record in t.output(reports).records}
        assert found == {"alice": "2025-01-01 250", "heartbeat": "2025-01-01 1"}
        asyncio.run(balances.put("alice", None))  # type: ignore[arg-type]
        assert t.table(balances) == {"heartbeat": 1}


def test_a_writable_table_can_be_joined_and_grouped() -> None:
    app = App("shop")
    names = app.topic("names", key=str, value=str)
    towns = app.table("towns", key=str, value=str)
    counts = towns.group_by(lambda key, town: (town, key), name="by-town").count(name="n")
    labels = app.topic("labels", key=str, value=str)
    app.table(names).join(
        towns, lambda name, town: f"{name} of {town}", name="labelled"
    ).changes().to(labels)

    @app.agent(app.topic("moves", key=str, value=str))
    async def move(stream: Stream[str, str]) -> None:
        async for key, town in stream.items():
            towns[key] = town

    with app.test() as t:
        t.input(names).send("Ada", key="1")
        asyncio.run(towns.put("1", "Ulm"))
        asyncio.run(towns.put("2", "Ulm"))
        asyncio.run(towns.put("1", "Bonn"))
        t.settle()
        assert t.output(labels).values == ["Ada of Ulm", "Ada of Bonn"]
        assert t.table(counts) == {"Ulm": 1, "Bonn": 1}


def failing(work: Callable[[Table[str, int], Stream[str, int]], object], **options: object) -> str:
    """Return the error that an agent gets."""
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    totals = app.table("totals", key=str, value=int)
    other = app.table("other", key=str, value=int)

    async def fn(stream: Words) -> None:
        async for _ in stream:
            work(totals, stream)

    app.agent(sales, tables=[totals], **options)(fn)  # type: ignore[arg-type]
    with app.test(partitions=4) as t, pytest.raises(ProcessingError) as caught:
        t.input(sales).send(1, key="a")
    assert other.name == "other"
    return str(caught.value)


def test_invalid_row_access_is_refused() -> None:
    assert "partition" in failing(lambda totals, _: totals.get("c"))
    assert "await table.fetch(key)" in failing(lambda totals, _: totals.get("c"))
    assert "KeyError" in failing(lambda totals, _: totals["a"])
    assert "KeyError" in failing(lambda totals, _: totals.__delitem__("a"))
    assert "int expected, got str" in failing(lambda totals, _: totals.__setitem__("a", "x"))  # type: ignore[arg-type]
    assert "side by side" in failing(lambda totals, _: totals.get("b"), concurrency=2)
    assert "ordered='none'" in failing(
        lambda totals, _: totals.get("a"), concurrency=2, ordered="none"
    )


def test_rows_are_accessible_only_where_their_keys_are_owned() -> None:
    app = App("shop")
    totals = app.table("totals", key=str, value=int)
    for ask in (lambda: totals["a"], lambda: totals.get("a"), lambda: "a" in totals):
        with pytest.raises(UsageError, match=r"await table\.fetch"):
            ask()
    with pytest.raises(TypeError, match="not iterable"):
        iter(totals)  # type: ignore[call-overload]

    sales = app.topic("sales", key=str, value=int)
    app.stream(sales).map_values(lambda value: totals.get("a") or value).to(sales)
    with app.test() as t, pytest.raises(ProcessingError, match="agent or a processor"):
        t.input(sales).send(1, key="a")


def test_computed_rows_can_be_read_but_not_set() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    sums = app.stream(sales).group_by_key().count(name="sums")
    doubled = sums.map_values(lambda n: 2 * n)
    seen: list[object] = []
    tries: list[str] = []

    @app.agent(sales, tables=[sums])
    async def look(stream: Words) -> AsyncIterator[int]:
        async for key, value in stream.items():
            seen.append((sums.get(key), doubled.get(key), [*doubled.items()]))
            try:
                sums[key] = value
            except UsageError as error:
                tries.append(str(error))
            yield value

    with app.test() as t:
        t.input(sales).send(1, key="a")
        assert seen == [(1, 2, [("a", 2)])]
        assert "can't be set here" in tries[0]


def test_invalid_table_declarations_are_refused() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    with pytest.raises(TopologyError, match="needs key= and value="):
        app.table("totals")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="name= and history="):
        app.table("totals", key=str, value=int, history="1h")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="the topic's types"):
        app.table(sales, ttl="1h")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="longer than 0"):
        app.table("totals", key=str, value=int, ttl="0s")
    with pytest.raises(TopologyError, match="1 or more, not 0"):
        app.table("totals", key=str, value=int, partitions=0)
    with pytest.raises(SerdeError, match="the value of table 'totals'"):
        app.table("totals", key=str, value=object)


@pytest.mark.parametrize("ttl", [None, "1h"])
def test_deleting_a_missing_row_emits_nothing(ttl: str | None) -> None:
    app = App("shop")
    changes = app.topic("changes", key=str, value=int)
    totals = app.table("totals", key=str, value=int, ttl=ttl)
    totals.changes().to(changes)

    async def put() -> None:
        for key, value in (("a", None), ("a", 1), ("b", None), ("a", None), ("a", None), ("b", 2)):
            await totals.put(key, value)

    with app.test() as t:
        asyncio.run(put())
        t.restart()
        found = [(record.key, record.value) for record in t.output(changes).records]
    assert found == [("a", 1), ("a", None), ("b", 2)]


def test_rows_belong_to_one_agent_or_to_processors() -> None:
    app, words, totals, _ = counting()

    @app.agent(words, name="asks")  # type: ignore[arg-type]
    async def asks(stream: Words) -> None:
        async for record in stream.records():
            word = record.key
            await totals.fetch(word)
            await totals.put(word, 1)

    assert "asks/tables" not in app.topology().describe()

    @app.agent(words, name="second")  # type: ignore[arg-type]
    async def second(stream: Words) -> None:
        async for record in stream.records():
            totals[record.key] = 1

    with pytest.raises(TopologyError, match="agent 'tally' and agent 'second' both use"):
        app.topology()


def test_a_processor_must_be_declared_after_its_tables() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)

    class Add(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            late[record.key] = 1

    app.stream(sales).process(Add, name="add")
    late = app.table("late", key=str, value=int)
    with pytest.raises(TopologyError, match="declare the table before"):
        app.topology()


@dataclass
class Basket:
    items: list[str]


def test_a_fetched_value_is_a_private_copy() -> None:
    app = App("shop")
    clicks = app.topic("clicks", key=str, value=str)
    baskets = app.table("baskets", key=str, value=Basket, default=lambda: Basket([]))

    @app.agent(clicks)
    async def fill(stream: Stream[str, str]) -> None:
        async for key, item in stream.items():
            basket = baskets[key]
            basket.items.append(item)
            if item != "lost":
                baskets[key] = basket

    with app.test() as t:
        for item in ("pen", "lost", "ink"):
            t.input(clicks).send(item, key="a")
        assert t.table(baskets) == {"a": Basket(["pen", "ink"])}


def test_windows_over_changes_close_by_the_tables_stream_time() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    totals = app.table("totals", key=str, value=int, default=int)
    out = app.topic("out", key=str, value=int)
    counted = totals.changes().group_by_key().windowed(tumbling("1m")).emit(Emit.CLOSE)
    counted.count(name="n").changes().map(lambda w, n: (w.key, n)).to(out)

    class Add(Processor[str, int, str, int]):
        def process(self, record: Record[str, int]) -> None:
            totals[record.key] += record.value

    app.stream(sales).process(Add, name="add")
    with app.test() as t:
        for second in (0, 10, 50, 70, 130):
            t.input(sales).send(1, key="a", at=START + timedelta(seconds=second))
        assert t.output(out).values == [3, 1]
