"""Transformers: what they read of one topic they write to another one, exactly once (KIP-447)."""

from __future__ import annotations

import itertools

from simulation.history import Outcome, Transaction
from simulation.load.readers import COMMITTED, HEARTBEAT_MS, POLL_MS, POLLS_MAX, SESSION_MS
from simulation.load.room import Room
from simulation.load.writers import Writer
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.errors import ProducerFenced, StreamlogError, TransactionAborted
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

TRANSACTION_TIMEOUT_MS = 10_000


async def transform(room: Room, name: str, group: str, source: str, target: str) -> None:
    """Read, write and commit in transactions, with a new producer and consumer after any error."""
    writer, numbers = Writer(room, name), itertools.count()
    while room.goes_on:
        try:
            async with (
                room.log.producer(
                    **writer.options(),
                    transactional_id=name,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                ) as producer,
                room.log.consumer(
                    group_id=group,
                    isolation_level=COMMITTED,
                    auto_offset_reset="earliest",
                    session_timeout_ms=SESSION_MS,
                    heartbeat_interval_ms=HEARTBEAT_MS,
                ) as consumer,
            ):
                await consumer.subscribe([source])
                for _ in range(room.chance.randint(1, POLLS_MAX)):
                    polled = await consumer.poll(timeout_ms=POLL_MS)
                    if polled:
                        label = f"{name}#{next(numbers)}"
                        await _transform(writer, (producer, consumer), label, target, polled)
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("transform", error)
    await writer.settled()


async def transform_rest(room: Room, group: str, source: str, target: str, counts: int) -> None:
    """The same when all is quiet, until nothing is left to transform."""
    writer = Writer(room, "rest")
    while True:
        try:
            async with (
                room.log.producer(transactional_id="rest") as producer,
                room.log.consumer(
                    group_id=group, isolation_level=COMMITTED, auto_offset_reset="earliest"
                ) as consumer,
            ):
                partitions = [TopicPartition(source, each) for each in range(counts)]
                await consumer.subscribe([source])
                while True:
                    polled = await consumer.poll(timeout_ms=POLL_MS)
                    if polled:
                        label = f"rest#{next(writer.numbers)}"
                        await _transform(writer, (producer, consumer), label, target, polled)
                    elif consumer.assignment() == set(partitions):
                        ends = await consumer.end_offsets(partitions)
                        if all(
                            [await consumer.position(each) >= ends[each] for each in partitions]
                        ):
                            return
        except StreamlogError as error:
            await room.after_error("transform the rest", error)


async def _transform(
    writer: Writer,
    clients: tuple[Producer, Consumer],
    label: str,
    target: str,
    polled: dict[TopicPartition, list[LogRecord]],
) -> None:
    """One transaction: records, and where the group goes on."""
    room, (producer, consumer) = writer.room, clients
    outcome, decided_ms = Outcome.UNKNOWN, room.now_ms()
    try:
        async with producer.transaction() as transaction:
            for partition, records in polled.items():
                for record in records:
                    source = (record.value or b"").decode()
                    value = f"{source}>{label}-{next(writer.numbers)}"
                    room.history.transformed[value] = source
                    place = (target, partition.partition)
                    await writer.send(producer, place, value, transaction=label)
            places = {each: records[-1].offset + 1 for each, records in polled.items()}
            await transaction.send_offsets(places, consumer.group_metadata())
            decided_ms = room.now_ms()
        outcome = Outcome.OK
    except ProducerFenced as error:
        # Who is shut out while it commits may have missed the answer to an attempt before.
        outcome = Outcome.UNKNOWN if error.in_doubt else Outcome.FAILED
        raise
    except TransactionAborted:
        outcome = Outcome.FAILED
        raise
    finally:
        room.counts[f"transform {outcome}"] += 1
        room.history.transactions.append(
            Transaction(name=label, outcome=outcome, decided_ms=decided_ms, ended_ms=room.now_ms())
        )
