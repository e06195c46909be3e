"""Calls of an agent's function: their records, and when a record counts as handled."""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, ProcessingError, Record, Stream, Topic
from streamlog.agents import results
from streamlog.agents.feed import YIELD_RECORDS
from streamlog.agents.offsets import AgentPosition
from streamlog.agents.results import RESULTS_MAX
from streamlog.agents.run import AgentRun
from streamlog.dsl.agent import Agent
from streamlog.durations import moment
from streamlog.nodes.stream_nodes import Order
from streamlog.processing.outbox import SinkBatch, SinkRecord
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord as RawRecord

PART = TopicPartition("words", 0)
OTHER = TopicPartition("words", 1)
Words = Stream[str, str]


class Bench:
    """An agent run with a manual clock, and its written results."""

    def __init__(self, fn: Callable[[Words], Any], **how: Any) -> None:
        app = App("a")
        self.words: Topic[str, str] = app.topic("words", key=str, value=str)
        self.out = app.topic("out", key=str, value=str)
        if how.pop("sinks", False):
            how["sink"] = self.out
        self.agent: Agent[str, str] = app.agent(self.words, **how)(fn).agent
        self.now_ms = 0
        self.written: list[SinkRecord] = []
        self.writes: list[int] = []
        """The number of records of each write."""
        self.wrote = asyncio.Event()
        self.run = AgentRun(self.agent, self.write, self)
        self._due: list[tuple[int, Callable[[], None]]] = []

    @property
    def wall_ms(self) -> int:
        return self.now_ms

    async def write(self, batches: Sequence[SinkBatch]) -> None:
        records = [record for batch in batches for record in batch.records()]
        self.written += records
        self.writes.append(len(records))
        self.wrote.set()

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        entry = (due_ms, call)
        heapq.heappush(self._due, entry)
        return lambda: self._due.remove(entry) if entry in self._due else None

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        while self._due and self._due[0][0] <= self.now_ms:
            heapq.heappop(self._due)[1]()

    def play(self, scenario: Callable[[Bench], Awaitable[None]]) -> Bench:
        async def main() -> None:
            self.run.assign({PART: AgentPosition(0), OTHER: AgentPosition(0)})
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.run.run())
                await scenario(self)
                self.run.end()

        asyncio.run(main())
        return self


def raw(offset: int, value: bytes | None = None, key: bytes | None = None) -> RawRecord:
    return RawRecord(offset, offset, key, b"%d" % offset if value is None else value)


def raws(start: int, end: int) -> list[RawRecord]:
    return [raw(offset) for offset in range(start, end)]


def test_a_stream_can_be_iterated_in_several_forms_in_turn() -> None:
    seen: list[Any] = []

    async def fn(stream: Words) -> None:
        async for value in stream:
            seen.append(value)
            if value == "1":
                break
        async for item in stream.items():
            seen.append(item)
            if item[1] == "3":
                break
        seen.extend([record async for record in stream.records()])

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, [raw(offset, key=b"k") for offset in range(6)])
        await bench.run.until_idle()
        assert bench.run.positions[PART] == AgentPosition(6, [])

    Bench(fn).play(scenario)
    assert seen[:4] == ["0", "1", ("k", "2"), ("k", "3")]
    assert seen[4:] == [
        Record("k", str(at), moment(at), (), "words", 0, at)  # with its topic, partition and offset
        for at in (4, 5)
    ]


def test_a_record_counts_as_handled_when_the_next_is_requested() -> None:
    async def fn(stream: Words) -> None:
        async for value in stream:
            if value == "2":
                waiting.set()
                await release.wait()

    release, waiting = asyncio.Event(), asyncio.Event()

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 5))
        await waiting.wait()
        assert bench.run.positions[PART].position == 2
        assert bench.run.current_positions == "words-0 offset 2"
        release.set()
        # Waiting records are dropped; the current one is finished.
        await bench.run.suspend()
        assert bench.run.positions[PART].position == 3
        bench.run.take(PART, raws(3, 5))
        assert bench.run.waiting == 0

    Bench(fn).play(scenario)


def test_a_loop_without_awaits_lets_other_tasks_run() -> None:
    turns = [0]

    async def fn(stream: Words) -> None:
        async for value in stream:
            turns[0] += len(value) > 0

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 10 * YIELD_RECORDS))
        seen = []
        while not bench.run.is_idle:
            await asyncio.sleep(0)
            seen.append(turns[0])
        assert len(set(seen)) >= 5

    Bench(fn).play(scenario)


def test_a_slow_loop_yields_after_each_record() -> None:
    handled: list[str] = []
    benches: list[Bench] = []

    async def fn(stream: Words) -> None:
        async for value in stream:
            handled.append(value)
            benches[0].now_ms += 50  # Simulates 50 ms of computation.

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, YIELD_RECORDS))
        seen = []
        while not bench.run.is_idle:
            await asyncio.sleep(0)
            seen.append(len(handled))
        # Other tasks had several turns after each record.
        assert {*seen} >= {*range(1, YIELD_RECORDS + 1)}
        assert len(seen) >= 4 * YIELD_RECORDS

    benches.append(Bench(fn))
    benches[0].play(scenario)


def test_lists_come_when_full_or_after_their_time() -> None:
    lists: list[list[str]] = []

    async def fn(stream: Words) -> None:
        async for records in stream.take(3, "5s"):
            values = [record.value for record in records]
            lists.append(values)

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 4))
        await bench.run.until_idle()
        assert lists == [["0", "1", "2"]]
        # The fourth record is in a list that was not delivered yet.
        assert bench.run.positions[PART].position == 3
        bench.advance(4_999)
        bench.run.take(OTHER, raws(7, 8))
        await bench.run.until_idle()
        assert len(lists) == 1
        bench.advance(1)
        await bench.run.until_idle()
        assert lists[1] == ["3", "7"]
        assert bench.run.positions == {PART: AgentPosition(4, []), OTHER: AgentPosition(8, [])}
        bench.run.take(PART, raws(4, 7))
        await bench.run.until_idle()
        assert lists[2] == ["4", "5", "6"]

    Bench(fn).play(scenario)


def test_a_partial_list_is_dropped_with_its_partition() -> None:
    lists: list[list[int]] = []

    async def fn(stream: Words) -> None:
        async for records in stream.take(3, "5s"):
            offsets = [record.offset for record in records]
            lists.append(offsets)

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 2))
        await bench.run.until_idle()
        await bench.run.suspend()
        assert bench.run.positions[PART].position == 0
        bench.run.assign({PART: AgentPosition(1)})
        bench.advance(5_000)  # The time limit of the first list.
        bench.run.take(PART, raws(1, 3))
        await bench.run.until_idle()
        assert lists == []
        bench.advance(5_000)
        await bench.run.until_idle()
        assert lists == [[1, 2]]

    Bench(fn).play(scenario)


@pytest.mark.parametrize("ordered", ["key", "partition", "none"])
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_several_calls_share_the_records_in_the_promised_order(
    ordered: Order, data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30))
    handled: list[Record[str, str]] = []
    gates: dict[int, asyncio.Event] = {}
    at_once: defaultdict[object, int] = defaultdict(int)

    def lane(record: Record[str, str]) -> object:
        lanes = {"key": record.key, "partition": record.partition}
        return lanes.get(ordered, (record.partition, record.offset))

    async def fn(stream: Words) -> None:
        async for record in stream.records():
            at_once[lane(record)] += 1
            assert at_once[lane(record)] == 1
            gates[record.offset] = asyncio.Event()
            await gates[record.offset].wait()
            del gates[record.offset]
            at_once[lane(record)] -= 1
            handled.append(record)

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, [raw(at, key=key) for at, key in enumerate(keys) if at % 2 == 0])
        bench.run.take(OTHER, [raw(at, key=key) for at, key in enumerate(keys) if at % 2])
        while not bench.run.is_idle:
            while not gates or any(gate.is_set() for gate in gates.values()):
                if bench.run.is_idle:
                    return
                await asyncio.sleep(0)
            gates[data.draw(st.sampled_from(sorted(gates)))].set()

    bench = Bench(fn, concurrency=4, ordered=ordered).play(scenario)
    assert sorted(record.offset for record in handled) == list(range(len(keys)))
    lanes: defaultdict[object, list[int]] = defaultdict(list)
    for record in handled:
        lanes[lane(record), record.partition].append(record.offset)
    assert all(offsets == sorted(offsets) for offsets in lanes.values())
    ends = [max([-1, *range(part, len(keys), 2)]) + 1 for part in (0, 1)]
    assert [bench.run.positions[at].position for at in (PART, OTHER)] == ends


def test_a_list_takes_the_records_of_its_own_keys() -> None:
    lists: list[list[int]] = []

    async def fn(stream: Words) -> None:
        async for records in stream.take(3, "5s"):
            offsets = [record.offset for record in records]
            lists.append(offsets)

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, [raw(at, key=b"k") for at in range(2)])
        await bench.run.until_idle()
        bench.run.take(PART, [raw(at, key=b"k") for at in range(2, 7)])
        await bench.run.until_idle()
        bench.advance(5_000)
        await bench.run.until_idle()
        assert lists == [[0, 1, 2], [3, 4, 5], [6]]
        assert bench.run.positions[PART].position == 7

    Bench(fn, concurrency=3).play(scenario)


def test_records_handled_out_of_order_are_tracked() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    fourth = asyncio.Event()

    async def fn(stream: Words) -> None:
        async for record in stream.records():
            if record.offset == 3:
                fourth.set()
            await gates[record.offset % 3].wait()

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 4))
        gates[1].set()
        await fourth.wait()
        assert bench.run.positions[PART] == AgentPosition(0, [(1, 2)])
        gates[0].set()
        gates[2].set()
        await bench.run.until_idle()
        assert bench.run.positions[PART] == AgentPosition(4, [])

    Bench(fn, concurrency=3, ordered="none").play(scenario)


def test_a_yielded_value_gets_the_record_s_key_and_time() -> None:
    async def fn(stream: Words) -> AsyncIterator[Any]:
        async for value in stream:
            yield value + "!"
            if value == "1":
                yield Record("mine", "made", moment(77), (("h", b"1"),))
            if value == "2":
                yield None

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, [raw(offset, key=b"k%d" % offset) for offset in range(3)])
        await bench.run.until_idle()
        await bench.run.results.drain()

    assert Bench(fn, sinks=True).play(scenario).written == [
        SinkRecord("out", None, 0, b"k0", b"0!"),
        SinkRecord("out", None, 1, b"k1", b"1!"),
        SinkRecord("out", None, 77, b"mine", b"made", (("h", b"1"),)),
        SinkRecord("out", None, 2, b"k2", b"2!"),
        SinkRecord("out", None, 2, b"k2", None),
    ]


def test_results_of_a_list_have_no_key() -> None:
    async def fn(stream: Words) -> AsyncIterator[str]:
        async for records in stream.take(2, "1s"):
            yield "+".join(record.value for record in records)

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, [raw(offset, key=b"k") for offset in range(4)])
        await bench.run.until_idle()
        await bench.run.results.drain()

    assert Bench(fn, sinks=True).play(scenario).written == [
        SinkRecord("out", None, 1, None, b"0+1"),
        SinkRecord("out", None, 3, None, b"2+3"),
    ]


def test_results_are_written_together_while_records_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "GATHER_MS", 60_000)

    async def fn(stream: Words) -> AsyncIterator[str]:
        async for value in stream:
            yield value

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 2 * RESULTS_MAX))
        await bench.run.until_idle()
        await bench.run.results.drain()

    bench = Bench(fn, sinks=True).play(scenario)
    assert bench.writes == [RESULTS_MAX, RESULTS_MAX]
    assert [record.value for record in bench.written] == [
        b"%d" % number for number in range(2 * RESULTS_MAX)
    ]


def test_a_result_is_written_at_once_if_no_record_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "GATHER_MS", 60_000)

    async def fn(stream: Words) -> AsyncIterator[str]:
        async for value in stream:
            yield value

    async def scenario(bench: Bench) -> None:
        bench.run.take(PART, raws(0, 1))
        async with asyncio.timeout(30):
            await bench.wrote.wait()

    assert len(Bench(fn, sinks=True).play(scenario).written) == 1


def test_pending_results_are_bounded() -> None:
    most = 0

    async def fn(stream: Words) -> AsyncIterator[str]:
        async for _ in stream:
            for number in range(3 * RESULTS_MAX):
                yield str(number)

    async def scenario(bench: Bench) -> None:
        nonlocal most
        bench.run.take(PART, raws(0, 1))
        while not bench.run.is_idle:
            before = len(bench.written)
            await asyncio.sleep(0)
            most = max(most, len(bench.written) - before)
        await bench.run.results.drain()

    assert len(Bench(fn, sinks=True).play(scenario).written) == 3 * RESULTS_MAX
    assert most <= RESULTS_MAX


async def fails(stream: Words) -> None:
    async for value in stream:
        assert value != "bad"


async def yields_numbers(stream: Words) -> AsyncIterator[Any]:
    async for value in stream:
        yield 1 if value == "bad" else value


async def yields_early(_: Words) -> AsyncIterator[str]:
    yield "nothing asked for"


async def leaves(stream: Words) -> None:
    async for _ in stream:
        break


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    ("fn", "value", "message"),
    [
        (fails, b"bad", "AssertionError"),
        (fails, b"\xff", "offset 7 of words-1"),
        (yields_numbers, b"bad", "offset 7 of words-1"),
        (yields_early, b"x", "yielded before"),
        (leaves, b"x", "do not leave the loop"),
    ],
)
def test_a_failure_names_the_record(
    fn: Callable[[Words], Any], value: bytes, message: str, concurrency: int
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.run.take(OTHER, [raw(6), raw(7, value)])
        await asyncio.Event().wait()

    bench = Bench(fn, sinks=fn is yields_numbers, concurrency=concurrency)
    with pytest.raises(ExceptionGroup, match="unhandled") as caught:
        bench.play(scenario)
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessingError)
    assert message in str(error)
    if "7" in message:
        assert (error.topic, error.partition, error.offset) == ("words", 1, 7)
        if fn is yields_numbers:
            # The record was handled, but it must not be committed.
            with pytest.raises(ProcessingError, match="offset 7"):
                asyncio.run(bench.run.results.drain())
        else:
            assert bench.run.positions[OTHER].position <= 7
