"""Who asks an agent is answered once, with the first thing that it yields for the record."""

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


class Still:
    """A clock that stands still."""

    now_ms = wall_ms = 0

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


async def nowhere(batches: Sequence[SinkBatch]) -> None:
    """There is no sink."""


def asking(offset: int, value: bytes) -> RawRecord:
    return RawRecord(offset, 0, None, value, Ask("a-replies-1", b"%d" % offset).headers)


def answers_of(fn: Callable[[Words], Any], records: Sequence[RawRecord]) -> list[tuple[Any, Any]]:
    answers: list[tuple[bytes, bytes | None]] = []
    app = App("a")
    agent = app.agent(app.topic("words", key=str, value=str))(fn).agent

    async def main() -> None:
        run = AgentRun(
            agent, nowhere, Still(), answer=lambda ask, data: answers.append((ask[1], data))
        )
        run.assign({PART: AgentPosition(0)})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.run())
            run.take(PART, records)
            await run.until_idle()
            run.end()

    asyncio.run(main())
    return answers


def test_asks_are_known_by_their_headers() -> None:
    ask = Ask("a-replies-1", b"\x00\xff")
    record = RawRecord(0, 0, None, b"", (("other", None), *ask.headers))
    plain = RawRecord(1, 0, None, b"", (("other", b"1"),))
    assert asks_of([plain, record, plain]) == {1: ask}
    assert number_of(record.headers) == ask.number
    assert number_of(plain.headers) is None


def test_the_first_thing_that_is_yielded_is_the_answer_and_nothing_is_one_too() -> None:
    async def fn(stream: Words) -> AsyncIterator[str]:
        async for record in stream.records():
            if record.value != "silent":
                yield record.value + "!"
                yield "more"

    records = [asking(0, b"a"), RawRecord(1, 0, None, b"b"), asking(2, b"silent"), asking(3, b"c")]
    assert sorted(answers_of(fn, records)) == [(b"0", b"a!"), (b"2", None), (b"3", b"c!")]


def test_a_list_answers_all_who_ask_in_it() -> None:
    async def fn(stream: Words) -> AsyncIterator[int]:
        async for records in stream.take(2, "1s"):
            yield len(records)

    records = [asking(offset, b"x") for offset in range(4)]
    two = (2).to_bytes(8, signed=True)
    assert answers_of(fn, records) == [(b"%d" % offset, two) for offset in range(4)]


def test_an_answer_has_the_type_that_the_function_says() -> None:
    async def fn(stream: Words) -> AsyncIterator[Any]:
        async for record in stream.records():
            yield record.replace(value={"said": record.value}) if record.value == "b" else (1, "a")

    app = App("a")
    ref = app.agent(app.topic("words", key=str, value=str))(fn)
    found = [
        ref.agent.answers.loads(data)
        for _, data in answers_of(fn, [asking(0, b"a"), asking(1, b"b")])
    ]
    assert found == [(1, "a"), {"said": "b"}]


def test_an_answer_that_cannot_be_written_fails_on_the_record() -> None:
    async def fn(stream: Words) -> AsyncIterator[Any]:
        async for _ in stream:
            yield Record

    with pytest.raises(ExceptionGroup) as caught:
        answers_of(fn, [asking(0, b"a")])
    (error,) = caught.value.exceptions
    assert isinstance(error, ProcessingError)
    assert (error.topic, error.partition, error.offset) == ("words", 0, 0)
