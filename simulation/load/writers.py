"""Writers: idempotent producers, and transactional ones, with values that are like no others'."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from simulation.history import Outcome, Place, Send, Transaction
from simulation.load.room import Room
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import ProducerFenced, StreamlogError, TransactionAborted

DELIVERY_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 5_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SENDS_MAX = 12
"""At once."""
ROUNDS_MAX = 40
"""Then the producer is closed, and another one goes on."""
ABORTED_SHARE = 0.3


class Writer:
    """One client that writes; `name` tells its records from others'."""

    def __init__(self, room: Room, name: str) -> None:
        self.room = room
        self.name = name
        self.numbers = itertools.count()
        self.producers = 0
        """How many it has had: a request of the last one may arrive after those of the next."""
        self._waiting: set[asyncio.Future[RecordMetadata]] = set()

    async def send(
        self, producer: Producer, place: Place, value: str, *, transaction: str | None = None
    ) -> None:
        """Write one record down, when it is known what has become of it."""
        number, began_ms = next(self.numbers), self.room.now_ms()
        producer_name = f"{self.name}.{self.producers}"

        def done(delivery: asyncio.Future[RecordMetadata] | None) -> None:
            offset, outcome = None, Outcome.UNKNOWN
            if delivery is not None:
                self._waiting.discard(delivery)
                if not delivery.cancelled() and delivery.exception() is None:
                    outcome = Outcome.OK
                    # -1: a duplicate of so long ago that the log does not know its place.
                    offset = max(delivery.result().offset, -1)
            self.room.history.sends.append(
                Send(
                    producer=producer_name,
                    number=number,
                    place=place,
                    value=value,
                    outcome=outcome,
                    offset=None if offset == -1 else offset,
                    began_ms=began_ms,
                    ended_ms=self.room.now_ms(),
                    transaction=transaction,
                )
            )

        try:
            topic, partition = place
            delivery = await producer.send(topic, value.encode(), partition=partition)
        except BaseException:
            done(None)
            raise
        self._waiting.add(delivery)
        delivery.add_done_callback(done)

    async def settled(self) -> None:
        """Wait until it is known of each record."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    def options(self) -> dict[str, Any]:
        """Of one more producer, by chance."""
        chance = self.room.chance
        self.producers += 1
        return {
            "linger_ms": chance.choice((0, 1, 5, 50)),
            "batch_bytes": chance.choice((200, 1_000, 100_000)),
            "compression": chance.choice(CODECS),
            "max_in_flight": chance.randint(1, 5),
            "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }


async def write(room: Room, name: str, places: Sequence[Place]) -> None:
    """Records one after the other, by one producer after the other."""
    writer, chance = Writer(room, name), room.chance
    while room.goes_on:
        try:
            async with room.log.producer(**writer.options()) as producer:
                for _ in range(chance.randint(1, ROUNDS_MAX)):
                    for _ in range(chance.randint(1, SENDS_MAX)):
                        value = f"{name}-{next(writer.numbers)}"
                        await writer.send(producer, chance.choice(places), value)
                    if chance.random() < 0.2:
                        await producer.flush()
                    await room.pause()
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("write", error)
    await writer.settled()


class _Aborted(Exception):
    """Leaves a transaction's block, which aborts it."""


async def write_transactions(room: Room, name: str, places: Sequence[Place]) -> None:
    """Transactions one after the other; some are aborted, some left open by a producer that dies.

    Where two clients have the same name, one shuts the other out.
    """
    writer = Writer(room, f"{name}/{room.chance.randrange(1_000_000)}")
    numbers = itertools.count()
    while room.goes_on:
        try:
            async with room.log.producer(
                **writer.options(), transactional_id=name, transaction_timeout_ms=10_000
            ) as producer:
                for _ in range(room.chance.randint(1, ROUNDS_MAX)):
                    label = f"{writer.name}#{next(numbers)}"
                    await one_transaction(room, writer, producer, label, places)
                    await room.pause()
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("transaction", error)
    await writer.settled()


async def one_transaction(
    room: Room, writer: Writer, producer: Producer, label: str, places: Sequence[Place]
) -> None:
    """One, and how it has ended.

    Raises:
        StreamlogError: this producer is over, or the transaction is.
    """
    outcome, decided_ms, is_planned = Outcome.UNKNOWN, room.now_ms(), False
    try:
        async with producer.transaction():
            for _ in range(room.chance.randint(1, SENDS_MAX)):
                value = f"{label}-{next(writer.numbers)}"
                await writer.send(producer, room.chance.choice(places), value, transaction=label)
            await room.pause()
            decided_ms = room.now_ms()
            if room.chance.random() < ABORTED_SHARE:
                outcome = Outcome.FAILED
                raise _Aborted  # noqa: TRY301 - this is how a transaction is aborted
        outcome = Outcome.OK
    except _Aborted:
        is_planned = True
        room.counts["aborted"] += 1
    except ProducerFenced as error:
        # Who is shut out while it commits may have missed the answer to an attempt before.
        outcome = Outcome.UNKNOWN if error.in_doubt else Outcome.FAILED
        raise
    except TransactionAborted:
        outcome = Outcome.FAILED
        raise
    finally:
        room.counts[f"transaction {outcome}"] += 1
        room.history.transactions.append(
            Transaction(
                name=label,
                outcome=outcome,
                decided_ms=decided_ms,
                ended_ms=room.now_ms(),
                is_planned=is_planned,
            )
        )
