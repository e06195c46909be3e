"""Sends in any order and from many tasks, cancelled and refused: what becomes of each record.

The laws are about what a caller sees and what the log holds, whatever happens in between:

1. Records come into the log of a partition in the order in which `send` was called.
2. Each delivery has one outcome. A place is where the log has the record; an error means that the
   log doesn't have it, unless the producer was closed meanwhile.
3. A `send` that was cancelled has handed over nothing.
4. `flush` returns or raises when all records of before have their outcome; it raises the error of
   one that was lost, if any was since the last flush.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import ConnectionLost, MessageTooLarge, StreamlogError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition

PARTITIONS = 2
BATCH_BYTES, BUFFER_BYTES = 400, 1_500
MESSAGE_BYTES_MAX = 1_000
SIZES = {"small": 10, "half a batch": 180, "refused": 2_000}
"""In bytes; the topic refuses the largest ones."""

kinds = st.sampled_from([*SIZES, "small", "small", "not bytes"])
places = st.sampled_from([None, 0, 1, b"a", b"b", b"c"])
"""No key, a partition, or a key."""
sends = st.tuples(st.sampled_from(["send", "send in a task"]), kinds, places)
acts = st.sampled_from(["flush", "turn", "cancel a task", "give up a delivery", "wait for one"])
scripts = st.lists(sends | st.tuples(acts, st.integers(0, 99), st.none()), max_size=50)


@dataclass
class Sent:
    """One call of `send`."""

    number: int
    kind: str
    delivery: asyncio.Future[RecordMetadata] | None = None
    outcomes: int = 0


@dataclass
class Run:
    """A script's calls, in the order in which they were made."""

    producer: Producer
    called: list[Sent] = field(default_factory=list)
    handed_over: list[Sent] = field(default_factory=list)
    sends: list[asyncio.Task[None]] = field(default_factory=list)
    waits: list[asyncio.Task[None]] = field(default_factory=list)

    async def send(self, kind: str, place: int | bytes | None) -> None:
        sent = Sent(len(self.called), kind)
        self.called.append(sent)
        value = b"%09d|" % sent.number
        value = str(value) if kind == "not bytes" else value.ljust(SIZES[kind], b".")  # type: ignore[assignment]
        key = place if isinstance(place, bytes) else None
        partition = place if isinstance(place, int) else None
        sent.delivery = await self.producer.send("t", value, key=key, partition=partition)
        sent.delivery.add_done_callback(lambda _: count(sent))
        self.handed_over.append(sent)

    async def flush(self) -> None:
        before = [sent.delivery for sent in self.handed_over if sent.delivery is not None]
        pending = [each for each in before if not each.done()]
        try:
            await self.producer.flush()
        except StreamlogError:
            pass
        else:
            assert not any(map(is_lost, pending)), "flush has hidden an error"
        assert all(each.done() for each in before)

    async def act(self, what: str, number: int) -> None:
        sent = self.handed_over[number % len(self.handed_over)] if self.handed_over else None
        if what == "flush":
            await self.flush()
        elif what == "turn":
            await asyncio.sleep(0)
        elif what == "cancel a task" and self.sends:
            self.sends[number % len(self.sends)].cancel()
        elif what == "give up a delivery" and sent is not None and sent.delivery is not None:
            sent.delivery.cancel()
        elif what == "wait for one" and sent is not None and sent.delivery is not None:
            self.waits.append(asyncio.create_task(outcome(sent.delivery)))

    async def follow(self, script: list[tuple[str, object, int | bytes | None]]) -> None:
        for what, argument, place in script:
            if what == "send":
                await self.send(str(argument), place)
            elif what == "send in a task":
                self.sends.append(asyncio.create_task(self.send(str(argument), place)))
            else:
                await self.act(what, int(str(argument)))


def count(sent: Sent) -> None:
    sent.outcomes += 1


async def outcome(delivery: asyncio.Future[RecordMetadata]) -> None:
    with suppress(StreamlogError):
        await asyncio.shield(delivery)


def is_lost(delivery: asyncio.Future[RecordMetadata]) -> bool:
    return not delivery.cancelled() and delivery.exception() is not None


async def held(log: Log) -> dict[tuple[int, int], int]:
    """Return the number of the record at each partition and offset."""
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    found: dict[tuple[int, int], int] = {}
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for at, records in (await consumer.poll(timeout_ms=1_000)).items():
                for record in records:
                    number = int((record.value or b"").partition(b"|")[0])
                    found[at.partition, record.offset] = number
    return found


def check(run: Run, found: dict[tuple[int, int], int], *, was_closed: bool) -> None:
    numbers = [sent.number for sent in run.handed_over]
    assert numbers == sorted(numbers), "a caller has overtaken another one"
    assert max(Counter(found.values()).values(), default=1) == 1, "a record was written twice"
    assert {*found.values()} <= {*numbers}, "a cancelled send was handed over"
    for partition in range(PARTITIONS):
        written = [found[place] for place in sorted(found) if place[0] == partition]
        assert written == sorted(written), "records have changed places"
    for sent in run.handed_over:
        assert sent.delivery is not None
        assert sent.delivery.done()
        assert sent.outcomes == 1
        if sent.delivery.cancelled():
            continue
        error = sent.delivery.exception()
        if error is None:
            place = sent.delivery.result()
            assert found[place.partition, place.offset] == sent.number
        elif was_closed and isinstance(error, ConnectionLost):
            continue  # The answer may have been on its way.
        else:
            assert sent.number not in {*found.values()}
            check_reason(run, sent, error)


def check_reason(run: Run, sent: Sent, error: BaseException) -> None:
    if sent.kind == "refused":
        assert isinstance(error, MessageTooLarge | UsageError)
    else:
        # Not bytes, or in a batch with a record that is not.
        assert isinstance(error, UsageError)
        assert any(each.kind == "not bytes" for each in run.handed_over)


async def lived(
    script: list[tuple[str, object, int | bytes | None]], linger_ms: int, *, fails: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Log.open(f"embedded:{directory}") as log:
            configs = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
            await log.admin().create_topics([NewTopic("t", PARTITIONS, configs=configs)])
            producer = log.producer(
                linger_ms=linger_ms, batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES, seed=1
            )
            run = Run(producer)
            with suppress(ZeroDivisionError):
                async with producer:
                    await producer.partitions("t")  # So that no caller waits for the look-up.
                    await run.follow(script)
                    if fails:
                        raise ZeroDivisionError
                    await asyncio.gather(*run.sends, return_exceptions=True)
                    await run.flush()
            await asyncio.gather(*run.sends, *run.waits, return_exceptions=True)
            await asyncio.sleep(0)  # For the last callbacks.
            check(run, await held(log), was_closed=fails)


@given(scripts, st.sampled_from([0, 5, 60_000]), st.booleans())
def test_each_record_has_one_outcome_whatever_is_sent_awaited_cancelled_and_refused(
    script: list[tuple[str, object, int | bytes | None]],
    linger_ms: int,
    fails: bool,
) -> None:
    asyncio.run(lived(script, linger_ms, fails=fails))


def run_embedded(main: Callable[[Log], Coroutine[object, object, None]]) -> None:
    async def opened() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with Log.open(f"embedded:{directory}") as log:
                await log.admin().create_topics([NewTopic("t", 1)])
                await main(log)

    asyncio.run(opened())


def test_a_caller_that_only_sends_lets_the_sender_work() -> None:
    async def main(log: Log) -> None:
        async with log.producer(linger_ms=60_000, batch_bytes=1_000) as producer:
            first = await producer.send("t", bytes(100))
            sent = 1
            while not first.done() and sent < 100_000:
                await producer.send("t", bytes(100))
                sent += 1
            assert first.done(), "the buffer would have to be full first"

    run_embedded(main)


def test_a_flush_ends_with_its_producer() -> None:
    async def main(log: Log) -> None:
        producer = log.producer(linger_ms=60_000)
        with suppress(ZeroDivisionError):
            async with producer:
                delivery = await producer.send("t", b"lost")
                flush = asyncio.create_task(producer.flush())
                raise ZeroDivisionError
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLost, match="the producer was closed"):
                await flush
            await producer.flush()  # There is nothing left to wait for.
        assert isinstance(delivery.exception(), ConnectionLost)

    run_embedded(main)


@pytest.mark.parametrize("fails", [False, True])
def test_a_send_that_waits_for_a_look_up_ends_with_its_producer(*, fails: bool) -> None:
    """Whenever that is: either it raises, or its delivery has an outcome."""

    async def main(log: Log) -> None:
        for turns in range(40):
            producer = log.producer(linger_ms=0)
            with suppress(ZeroDivisionError):
                async with producer:
                    send = asyncio.create_task(producer.send("t", b"%d" % turns))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    if fails:
                        raise ZeroDivisionError
            async with asyncio.timeout(60):
                await asyncio.wait([send])
            if send.exception() is None:
                assert is_lost(send.result()) in {False, fails}
            else:
                assert isinstance(send.exception(), UsageError | ConnectionLost)

    run_embedded(main)
