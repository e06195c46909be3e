"""Asks of an agent: each gets one answer, the first value yielded for its record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from streamlog import App, ProcessingError, Record, Stream
from streamlog.agents.asks import Ask, asks_of, number_of
from streamlog.agents.offsets import AgentPosition
from streamlog.agents.run import AgentRun
from streamlog.processing.outbox import SinkBatch
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord as RawRecord

PART = TopicPartition("words", 0)
Words = Stream[str, str]


class StoppedClock:
    """A clock that never advances."""

    now_ms = wall_ms = 0

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


async def no_sink(batches: Sequence[SinkBatch]) -> None:
    """Discard results: the agent has no sink."""


def ask_record(offset: int, value: bytes) -> RawRecord:
    return RawRecord(offset, 0, None, value, Ask("a-replies-1", b"%d" % offset).headers)


def answers_of(fn: Callable[[Words], Any], records: Sequence[RawRecord]) -> list[tuple[Any, Any]]:
    answers: list[tuple[bytes, bytes | None]] = []
    app = App("a")
    agent = app.agent(app.topic("words", key=str, value=str))(fn).agent

    async def main() -> None:
        run = AgentRun(
            agent, no_sink, StoppedClock(), answer=lambda ask, data: answers.append((ask[1], data))
        )
        run.assign({PART: AgentPosition(0)})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.run())
            run.take(PART, records)
            await run.until_idle()
            run.end()

    asyncio.run(main())
    return answers


def test_asks_are_recognized_by_their_headers() -> None:
    ask = Ask("a-replies-1", b"\x00\xff")
    record = RawRecord(0, 0, None, b"", (("other", None), *ask.headers))
    plain = RawRecord(1, 0, None, b"", (("other", b"1"),))
    assert asks_of([plain, record, plain]) == {1: ask}
    assert number_of(record.headers) == ask.number
    assert number_of(plain.headers) is None


def test_the_first_yielded_value_or_none_is_the_answer() -> None:
    async def fn(stream: Words) -> AsyncIterator[str]:
        async for record in stream.records():
            if record.value != "silent":
                yield record.value + "!"
                yield "more"

    records = [
        ask_record(0, b"a"),
        RawRecord(1, 0, None, b"b"),
        ask_record(2, b"silent"),
        ask_record(3, b"c"),
    ]
    assert sorted(answers_of(fn, records)) == [(b"0", b"a!"), (b"2", None), (b"3", b"c!")]


def test_a_value_for_a_list_answers_all_asks_in_it() -> None:
    async def fn(stream: Words) -> AsyncIterator[int]:
        async for records in stream.take(2, "1s"):
            yield len(records)

    records = [ask_record(offset, b"x") for offset in range(4)]
    two_bytes = (2).to_bytes(8, signed=True)
    assert answers_of(fn, records) == [(b"%d" % offset, two_bytes) for offset in range(4)]


def test_an_answer_has_the_declared_type() -> None:
    async def fn(stream: Words) -> AsyncIterator[Any]:
        async for record in stream.records():
            yield record.replace(value={"said": record.value}) if record.value == "b" else (1, "a")

    app = App("a")
    ref = app.agent(app.topic("words", key=str, value=str))(fn)
    found = [
        ref.agent.answers.loads(data)
        for _, data in answers_of(fn, [ask_record(0, b"a"), ask_record(1, b"b")])
    ]
    assert found == [(1, "a"), {"said": "b"}]


def test_an_unwritable_answer_fails_with_its_record() -> None:
    async def fn(stream: Words) -> AsyncIterator[Any]:
        async for _ in stream:
            yield Record

    with pytest.raises(ExceptionGroup) as caught:
        answers_of(fn, [ask_record(0, b"a")])
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessingError)
    assert (error.topic, error.partition, error.offset) == ("words", 0, 0)
